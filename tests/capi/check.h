/* What the C tests share: a check that says where it failed, and shorthands for strings and statuses. */
#ifndef FATHOM_TEST_CHECK_H
#define FATHOM_TEST_CHECK_H

#include <fathom.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);           \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

#ifdef GUEST
/* Loaded by dlopen: nothing may be called by its name. */
#define STATUS_NAME(status) ((void)(status), "another status")
#else
#define STATUS_NAME(status) fathom_status_name(status)
#endif

/* The status of a call, and its name in the message. */
#define CHECK_STATUS(call, expected)                                            \
  do {                                                                          \
    fathom_status got_ = (call);                                                \
    if (got_ != (expected)) {                                                   \
      fprintf(stderr, "%s:%d: %s is %s (%d), not %s\n", __FILE__, __LINE__,     \
              #call, STATUS_NAME(got_), (int)got_, #expected);           \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

/* A call that must work; `e` is its error object. */
#define CHECK_OK(call, e)                                                       \
  do {                                                                          \
    fathom_status got_ = (call);                                                \
    if (got_ != FATHOM_OK) {                                                    \
      fprintf(stderr, "%s:%d: %s is %s: %s\n", __FILE__, __LINE__, #call,       \
              fathom_status_name(got_), fathom_error_message((e), NULL));       \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

/* A call that must fail with a status, naming a param. */
#define CHECK_PARAM(call, expected, name)                                       \
  do {                                                                          \
    fathom_error *err = NULL;                                                   \
    CHECK_STATUS(call, expected);                                               \
    CHECK(err != NULL);                                                         \
    CHECK(fathom_error_status(err) == (expected));                              \
    size_t len_ = 0;                                                            \
    const char *message_ = fathom_error_message(err, &len_);                    \
    CHECK(message_ != NULL && len_ > 0 && message_[len_] == '\0');              \
    const char *param_ = fathom_error_param(err, &len_);                        \
    if (strcmp(param_, (name)) != 0 || len_ != strlen(name)) {                  \
      fprintf(stderr, "%s:%d: %s names \"%s\" and not \"%s\": %s\n", __FILE__,  \
              __LINE__, #call, param_, (name), message_);                       \
      exit(1);                                                                  \
    }                                                                           \
    fathom_error_free(err);                                                     \
  } while (0)

static inline fathom_str str(const char *text) {
  fathom_str s = {text, text == NULL ? 0 : strlen(text)};
  return s;
}

/* Handles that are none: never made, not aligned, not mapped, and memory of ours. */
#define STRAY_COUNT 5
static inline void *stray(int which) {
  static uint64_t ours[8];
  switch (which) {
    case 0: return NULL;
    case 1: return (void *)(uintptr_t)0xFF;
    case 2: return (void *)(uintptr_t)0x7fffdeadbeefu;
    case 3: return (void *)UINTPTR_MAX;
    default: return ours;
  }
}

/* Whether JSON text has this piece. */
static inline int has(const char *text, size_t len, const char *piece) {
  size_t wanted = strlen(piece);
  for (size_t i = 0; i + wanted <= len; i++)
    if (memcmp(text + i, piece, wanted) == 0) return 1;
  return 0;
}

#ifndef GUEST
/* A buffer that contains a piece; frees it. */
static inline void check_buf(fathom_buf *b, const char *piece) {
  size_t len = 0;
  const char *text = (const char *)fathom_buf_data(b, &len);
  CHECK(text != NULL && text[len] == '\0');
  if (!has(text, len, piece)) {
    fprintf(stderr, "no %s in %s\n", piece, text);
    exit(1);
  }
  fathom_buf_free(b);
}

#endif

#ifdef NEEDS_MODEL
/* The demo model, opened for a CPU, and what goes with it. */
typedef struct world {
  fathom_engine *e;
  fathom_queue *q;
  fathom_recipe *r;
  fathom_batch *b;
} world;

static inline fathom_recipe *open_recipe(const char *model, const char *options) {
  fathom_error *err = NULL;
  fathom_recipe_options o;
  fathom_recipe_options_init(&o, sizeof o);
  o.tokenizer_path = str(model);
  o.options_json = str(options);
  fathom_recipe *r = NULL;
  CHECK_OK(fathom_recipe_open(&o, &r, &err), err);
  return r;
}

static inline world open_world(const char *model) {
  world w;
  fathom_error *err = NULL;
  fathom_engine_options o;
  fathom_engine_options_init(&o, sizeof o);
  o.model_path = str(model);
  o.device = str("cpu");
  o.cpu_threads = 2;
  CHECK_OK(fathom_engine_open(&o, &w.e, &err), err);
  CHECK_OK(fathom_queue_new(NULL, &w.q, &err), err);
  w.r = open_recipe(model, NULL);
  CHECK_STATUS(fathom_batch_new(sizeof(fathom_event), &w.b), FATHOM_OK);
  return w;
}

static inline void close_world(world w) {
  /* Any order is right; this one is not the order of making. */
  fathom_recipe_free(w.r);
  fathom_engine_free(w.e);
  fathom_queue_free(w.q);
  fathom_batch_free(w.b);
}

#define CHAT(text) "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]," \
  "\"thinking\":{\"type\":\"disabled\"}"
#endif

#endif
