/* Whether arrays of the caller's are what the model takes. */
typedef struct {
  const char* role; /* "input" or "output" */
  const char* verb;
} Side;

static const Side kInputSide = {"input", "takes"}, kOutputSide = {"output", "returns"};

static blislike_status misfit(blislike_error* error, Side side, const blislike_tensor* wanted,
                              const char* has) {
  fail(error, BLISLIKE_INVALID, side.role);
  say(error, " ");
  say(error, wanted->name);
  say(error, has);
  return BLISLIKE_INVALID;
}

static void say_wanted(blislike_error* error, Side side, const blislike_tensor* wanted) {
  say(error, "; the model ");
  say(error, side.verb);
  say(error, " ");
  say_shape(error, wanted->rank, wanted->shape);
  say(error, " ");
  say_type(error, wanted->type);
}

static int same_shape(const blislike_tensor* wanted, const blislike_input* given) {
  if (given->rank != wanted->rank) return 0;
  for (int32_t i = 0; i < wanted->rank; i++) {
    if (given->shape[i] != wanted->shape[i]) return 0;
  }
  return 1;
}

static blislike_status check(const blislike_tensor* wanted, const blislike_input* given, Side side,
                             blislike_error* error) {
  if (given->type != BLISLIKE_ANY_TYPE && given->type != wanted->type) {
    misfit(error, side, wanted, " has type ");
    say_type(error, given->type);
  } else if (given->shape != NULL && !same_shape(wanted, given)) {
    misfit(error, side, wanted, " has shape ");
    say_shape(error, given->rank, given->shape);
  } else if (given->bytes != wanted->bytes) {
    misfit(error, side, wanted, " has ");
    say_number(error, (int64_t)given->bytes);
    say(error, " bytes, not ");
    say_number(error, (int64_t)wanted->bytes);
  } else if (given->data == NULL && wanted->bytes != 0) {
    misfit(error, side, wanted, " is NULL");
  } else {
    return BLISLIKE_OK;
  }
  say_wanted(error, side, wanted);
  return BLISLIKE_INVALID;
}

static blislike_input as_input(const blislike_output* output) {
  blislike_input same = {output->data, output->bytes, output->type, output->rank, output->shape};
  return same;
}

static blislike_status check_count(const void* arrays, int32_t given, int32_t wanted,
                                   const blislike_tensor* tensors, Side side,
                                   blislike_error* error) {
  if (arrays == NULL) given = 0;
  if (given == wanted) return BLISLIKE_OK;
  fail(error, BLISLIKE_INVALID, "");
  say_number(error, given);
  say(error, " ");
  say(error, side.role);
  say(error, given == 1 ? " given; the model " : "s given; the model ");
  say(error, side.verb);
  say(error, " ");
  say_number(error, wanted);
  for (int32_t i = 0; i < wanted; i++) {
    say(error, i == 0 ? ": " : ", ");
    say(error, tensors[i].name);
  }
  return BLISLIKE_INVALID;
}

static int overlap(const void* one, size_t one_bytes, const void* other, size_t other_bytes) {
  uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
  return a < b + other_bytes && b < a + one_bytes;
}

static blislike_status check_all(const blislike_input* inputs, int32_t input_count,
                                 const blislike_output* outputs, int32_t output_count,
                                 blislike_error* error) {
  blislike_status status = check_count(inputs, input_count, INPUTS, input_specs, kInputSide, error);
  if (!status) {
    status = check_count(outputs, output_count, OUTPUTS, output_specs, kOutputSide, error);
  }
  for (int32_t i = 0; !status && i < INPUTS; i++) {
    status = check(&input_specs[i], &inputs[i], kInputSide, error);
  }
  for (int32_t i = 0; !status && i < OUTPUTS; i++) {
    blislike_input given = as_input(&outputs[i]);
    status = check(&output_specs[i], &given, kOutputSide, error);
    for (int32_t j = 0; !status && j < i; j++) {
      if (!overlap(given.data, given.bytes, outputs[j].data, outputs[j].bytes)) continue;
      status = misfit(error, kOutputSide, &output_specs[i], " overlaps output ");
      say(error, output_specs[j].name);
    }
  }
  return status;
}
