// cJSON, built as C++ like everything here: one language, one compiler, one set of options.
#include "cjson/cJSON.c"
