/* The rules for structs that say their size, for every such struct; unknown flags; reserved fields. */
#include "check.h"

#define ABI FATHOM_ERR_ABI
#define BAD FATHOM_ERR_INVALID_ARGUMENT

/* A struct followed by what a newer header may add. */
#define NEWER(type) union { type known; unsigned char bytes[sizeof(type) + 24]; }

static fathom_status open_engine(const fathom_engine_options *o, fathom_error **err) {
  fathom_engine *e = NULL;
  fathom_status s = fathom_engine_open(o, &e, err);
  CHECK(e == NULL);
  return s;
}

static void engine(void) {
  NEWER(fathom_engine_options) n;
  fathom_engine_options *o = &n.known;
  fathom_engine *e = NULL;
  fathom_engine_options_init(NULL, sizeof n);
  CHECK_PARAM(fathom_engine_open(NULL, &e, &err), BAD, "o");
  CHECK_PARAM(fathom_engine_open(o, NULL, &err), BAD, "out");

  fathom_engine_options_init(o, sizeof n);
  CHECK(o->struct_size == sizeof n);
  for (size_t i = sizeof *o; i < sizeof n; i++) CHECK(n.bytes[i] == 0);
  CHECK_PARAM(open_engine(o, &err), BAD, "model_path");
  n.bytes[sizeof n - 1] = 1;
  CHECK_PARAM(open_engine(o, &err), ABI, "struct_size");
  n.bytes[sizeof n - 1] = 0;

  /* An init of an older binary writes no byte beyond its struct. */
  memset(&n, 0xFF, sizeof n);
  fathom_engine_options_init(o, 24);
  CHECK(o->struct_size == 24 && o->model_path.ptr == NULL);
  for (size_t i = 24; i < sizeof n; i++) CHECK(n.bytes[i] == 0xFF);
  /* ... and what it does not have keeps its defaults, whatever stands there. */
  o->model_path = str("/nonexistent/model");
  (void)open_engine(o, NULL); /* the garbage in flags was not read: no status of ours */

  fathom_engine_options_init(o, sizeof *o);
  size_t sizes[] = {0, 7, 4097, SIZE_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    o->struct_size = sizes[i];
    CHECK_PARAM(open_engine(o, &err), ABI, "struct_size");
  }
  fathom_engine_options_init(o, sizeof *o);
  o->model_path = str("x");
  o->flags = 0xFF;
  CHECK_PARAM(open_engine(o, &err), BAD, "flags");
  o->flags = 0;
  o->reserved0 = 1;
  CHECK_PARAM(open_engine(o, &err), ABI, "reserved0");
  o->reserved0 = 0;
  o->device.len = 3;
  CHECK_PARAM(open_engine(o, &err), BAD, "device");
  o->device = str("\xFF\xFE");
  CHECK_PARAM(open_engine(o, &err), FATHOM_ERR_INVALID_UTF8, "device");
  o->device = str(NULL);
  o->model_path.ptr = "a\0b";
  o->model_path.len = 3;
  CHECK_PARAM(open_engine(o, &err), BAD, "model_path");
}

static void recipe(void) {
  NEWER(fathom_recipe_options) n;
  fathom_recipe_options *o = &n.known;
  fathom_recipe *r = NULL;
  fathom_recipe_options_init(o, sizeof n);
  n.bytes[sizeof *o] = 1;
  CHECK_PARAM(fathom_recipe_open(o, &r, &err), ABI, "struct_size");
  fathom_recipe_options_init(o, sizeof *o);
  o->flags = 0xFF;
  CHECK_PARAM(fathom_recipe_open(o, &r, &err), BAD, "flags");
  o->flags = 0;
  o->options_json = str("\xC0");
  CHECK_PARAM(fathom_recipe_open(o, &r, &err), FATHOM_ERR_INVALID_UTF8, "options_json");
  o->options_json.ptr = NULL;
  CHECK_PARAM(fathom_recipe_open(o, &r, &err), BAD, "options_json");
  CHECK(r == NULL);
  CHECK_STATUS(fathom_recipe_open(NULL, NULL, NULL), BAD);
}

static void queue(void) {
  NEWER(fathom_queue_options) n;
  fathom_queue *q = NULL;
  memset(&n, 0, sizeof n);
  n.known.struct_size = sizeof n;
  n.bytes[sizeof n - 1] = 1;
  CHECK_PARAM(fathom_queue_new(&n.known, &q, &err), ABI, "struct_size");
  n.known.struct_size = sizeof n.known;
  n.known.flags = 0xFF;
  CHECK_PARAM(fathom_queue_new(&n.known, &q, &err), BAD, "flags");
  CHECK(q == NULL);
}

static void batches(void) {
  fathom_batch *b = NULL;
  size_t bad[] = {0, 8, 16, 23, 25, sizeof(fathom_event) + 1, 4104, SIZE_MAX};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    CHECK_STATUS(fathom_batch_new(bad[i], &b), ABI);
    CHECK(b == NULL);
  }
  size_t good[] = {24, sizeof(fathom_event) - 16, sizeof(fathom_event), sizeof(fathom_event) + 64};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    CHECK_STATUS(fathom_batch_new(good[i], &b), FATHOM_OK);
    fathom_batch_free(b);
  }
  CHECK_STATUS(fathom_batch_new(sizeof(fathom_event), NULL), BAD);
}

int main(void) {
  engine();
  recipe();
  queue();
  batches();
  return 0;
}
