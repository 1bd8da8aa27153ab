/* Texts of errors, without the C library. */
static const char* const type_names[] = {
    "any",    "bool",   "int8",   "int16",   "int32",    "int64",   "uint8",
    "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64"};

enum { kTypes = sizeof type_names / sizeof type_names[0] };

/* Appends a text as far as there is room. */
static void say(blislike_error* error, const char* text) {
  if (error == NULL) return;
  size_t end = 0;
  while (error->text[end] != '\0') end++;
  while (*text != '\0' && end + 1 < sizeof error->text) error->text[end++] = *text++;
  error->text[end] = '\0';
}

static void say_number(blislike_error* error, int64_t number) {
  char digits[24];
  char* start = digits + sizeof digits - 1;
  uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
  *start = '\0';
  do *--start = (char)('0' + rest % 10);
  while (rest /= 10);
  if (number < 0) *--start = '-';
  say(error, start);
}

static void say_type(blislike_error* error, blislike_type type) {
  say(error, type >= 0 && type < kTypes ? type_names[type] : "none that is known");
}

/* 1x3x8x8, or "scalar". */
static void say_shape(blislike_error* error, int32_t rank, const int64_t* shape) {
  if (rank == 0) say(error, "scalar");
  for (int32_t i = 0; i < rank; i++) {
    if (i != 0) say(error, "x");
    say_number(error, shape[i]);
  }
}

static blislike_status fail(blislike_error* error, blislike_status status, const char* text) {
  if (error != NULL) error->text[0] = '\0';
  say(error, text);
  return status;
}
