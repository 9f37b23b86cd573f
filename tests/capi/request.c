/* Requests and polling: submit, cancel, acknowledge, queues, wake-ups, batches of other sizes. */
#define NEEDS_MODEL
#include "check.h"
#include <poll.h>
#include <pthread.h>

#define BAD FATHOM_ERR_INVALID_ARGUMENT

static world w;
static const uint32_t prompt[] = {0, 4036, 852, 434, 261, 405, 445, 261, 1494, 428, 1341, 16, 4037, 4055};
#define PROMPT prompt, sizeof prompt / sizeof *prompt

/* What came of one request. */
typedef struct outcome {
  uint32_t tokens[512];
  size_t count, events;
  int32_t finish;
  fathom_status status;
  fathom_usage usage;
  char detail[1024];
} outcome;

static outcome collect(fathom_request_id id, uint64_t tag) {
  outcome o;
  memset(&o, 0, sizeof o);
  for (;;) {
    const fathom_event *ev;
    size_t n;
    fathom_error *err = NULL;
    CHECK_OK(fathom_queue_poll(w.q, w.b, -1, &ev, &n, &err), err);
    for (size_t i = 0; i < n; i++) {
      if (ev[i].request != id) continue;
      CHECK(ev[i].tag == tag);
      if (ev[i].kind == FATHOM_EVENT_TOKENS) {
        if (o.events == 0) {
          CHECK(ev[i].usage != NULL && ev[i].usage->prompt_tokens > 0);
          CHECK(has(ev[i].detail.ptr, ev[i].detail.len, "\"seed\":"));
          CHECK(ev[i].detail.ptr[ev[i].detail.len] == '\0');
        }
        o.events++;
        CHECK(o.count + ev[i].token_count <= 512);
        memcpy(o.tokens + o.count, ev[i].tokens, ev[i].token_count * sizeof(uint32_t));
        o.count += ev[i].token_count;
        continue;
      }
      CHECK(ev[i].kind == FATHOM_EVENT_DONE);
      CHECK(ev[i].usage != NULL && ev[i].detail.len > 2);
      o.finish = ev[i].finish;
      o.status = ev[i].error == NULL ? FATHOM_OK : fathom_error_status(ev[i].error);
      /* Lent: free does nothing, retain keeps. */
      fathom_error_free((fathom_error *)(uintptr_t)ev[i].error);
      if (ev[i].error != NULL) CHECK(fathom_error_message(ev[i].error, NULL) != NULL);
      fathom_error *kept = fathom_error_retain(ev[i].error);
      CHECK((kept != NULL) == (ev[i].error != NULL));
      fathom_error_free(kept);
      o.usage = *ev[i].usage;
      snprintf(o.detail, sizeof o.detail, "%.*s", (int)ev[i].detail.len, ev[i].detail.ptr);
      return o;
    }
  }
}

static fathom_submit_options options(void) {
  fathom_submit_options o;
  fathom_submit_options_init(&o, sizeof o);
  CHECK(isnan(o.temperature) && isnan(o.top_p));
  o.temperature = 0.0f;
  o.max_tokens = 12;
  return o;
}

static fathom_request_id submit(const fathom_submit_options *o) {
  fathom_request_id id = 0;
  fathom_error *err = NULL;
  CHECK_OK(fathom_submit_tokens(w.e, w.q, PROMPT, o, &id, &err), err);
  CHECK(id != 0);
  return id;
}

static void good(void) {
  fathom_submit_options o = options();
  o.tag = 0xFEDCBA9876543210u;
  outcome first = collect(submit(&o), o.tag);
  CHECK(first.count > 0 && first.count <= 12);
  CHECK(first.finish == FATHOM_FINISH_LENGTH || first.finish == FATHOM_FINISH_STOP);
  CHECK(first.status == FATHOM_OK);
  CHECK(first.usage.prompt_tokens == sizeof prompt / sizeof *prompt);
  CHECK(first.usage.completion_tokens == first.count);
  CHECK(strstr(first.detail, "\"reason\":") != NULL);
  outcome second = collect(submit(&o), o.tag);
  CHECK(second.count == first.count && memcmp(first.tokens, second.tokens, first.count * 4) == 0);

  /* A stop token is delivered, and ends. */
  o.stop_tokens = first.tokens + 3;
  o.stop_token_count = 1;
  outcome stopped = collect(submit(&o), o.tag);
  CHECK(stopped.finish == FATHOM_FINISH_STOP && stopped.tokens[stopped.count - 1] == first.tokens[3]);

  /* Logprobs: the shape, and the greedy choice is the most probable. */
  o = options();
  o.logprobs = 3;
  o.max_tokens = 2;
  fathom_request_id id = submit(&o);
  int seen = 0, done = 0;
  while (!done) {
    const fathom_event *ev;
    size_t n;
    CHECK_STATUS(fathom_queue_poll(w.q, w.b, -1, &ev, &n, NULL), FATHOM_OK);
    for (size_t i = 0; i < n; i++) {
      CHECK(ev[i].request == id);
      done |= ev[i].kind == FATHOM_EVENT_DONE;
      if (ev[i].kind != FATHOM_EVENT_TOKENS || ev[i].token_count == 0) continue;
      CHECK(ev[i].top_count == 3 && ev[i].logprobs[0] <= 0.0f);
      CHECK(ev[i].top_tokens[0] == ev[i].tokens[0] && ev[i].top_logprobs[0] >= ev[i].top_logprobs[1]);
      seen++;
    }
  }
  CHECK(seen > 0);
}

static void refused(void) {
  fathom_submit_options o = options();
  fathom_request_id id = 9;
#define REFUSE(status, name) CHECK_PARAM(fathom_submit_tokens(w.e, w.q, PROMPT, &o, &id, &err), status, name); \
  CHECK(id == 0); o = options()
  o.priority = 5; REFUSE(BAD, "priority");
  o.priority = INT32_MIN; REFUSE(BAD, "priority");
  o.flags = 0xFF; REFUSE(BAD, "flags");
  o.logprobs = 1001; REFUSE(BAD, "logprobs");
  o.stop_token_count = 65; REFUSE(BAD, "stop_token_count");
  o.stop_token_count = 1; REFUSE(BAD, "stop_tokens");
  o.temperature = -1.0f; REFUSE(BAD, "temperature");
  o.top_p = 0.0f; REFUSE(BAD, "top_p");
  o.constraint = (const fathom_constraint *)w.q; REFUSE(BAD, "constraint");
  o.params_json = str("{\"n\":2}"); REFUSE(FATHOM_ERR_UNSUPPORTED, "n");
  o.params_json = str("{\"spec\":\"off\"}"); REFUSE(FATHOM_ERR_UNSUPPORTED, "spec");
  o.params_json = str("{\"nonsense\":2}"); REFUSE(BAD, "nonsense");
  o.params_json = str("nonsense"); REFUSE(BAD, "params_json");
  o.params_json = str("\xFF"); REFUSE(FATHOM_ERR_INVALID_UTF8, "params_json");
  o.struct_size = 3; REFUSE(FATHOM_ERR_ABI, "struct_size");
#undef REFUSE
  CHECK_PARAM(fathom_submit_tokens(w.e, w.q, PROMPT, &o, NULL, &err), BAD, "out");
  CHECK_PARAM(fathom_submit_tokens(w.e, w.q, NULL, 3, &o, &id, &err), BAD, "tokens");
  CHECK_STATUS(fathom_submit_tokens(w.e, w.q, prompt, 0, &o, &id, NULL), BAD);
  uint32_t outside = 1u << 30;
  CHECK_STATUS(fathom_submit_tokens(w.e, w.q, &outside, 1, &o, &id, NULL), BAD);
  uint32_t *endless = calloc(100000, sizeof *endless);
  CHECK_STATUS(fathom_submit_tokens(w.e, w.q, endless, 100000, &o, &id, NULL), FATHOM_ERR_CONTEXT_LENGTH);
  free(endless);
  CHECK_STATUS(fathom_submit_tokens(w.e, w.q, PROMPT, NULL, NULL, NULL), BAD);
}

static void ends(void) {
  fathom_submit_options o = options();
  o.max_tokens = 3000;
  o.params_json = str("{\"ignore_eos\":true}");
  fathom_request_id id = submit(&o), ids[] = {id, 0, UINT64_MAX, id};
  CHECK_STATUS(fathom_cancel(w.e, ids, 4), FATHOM_OK);
  CHECK_STATUS(fathom_cancel(w.e, ids, 4), FATHOM_OK);
  outcome cancelled = collect(id, 0);
  CHECK(cancelled.finish == FATHOM_FINISH_CANCELLED && cancelled.status == FATHOM_ERR_CANCELLED);
  CHECK(strstr(cancelled.detail, "\"code\":\"CANCELLED\"") != NULL);
  CHECK_STATUS(fathom_cancel(w.e, ids, 4), FATHOM_OK); /* late */
  CHECK_STATUS(fathom_cancel(w.e, NULL, 0), FATHOM_OK);
  CHECK_STATUS(fathom_cancel(w.e, NULL, 1), BAD);

  o.deadline_ms = 1;
  outcome late = collect(submit(&o), 0);
  CHECK(late.finish == FATHOM_FINISH_CANCELLED && late.status == FATHOM_ERR_DEADLINE);
}

static void acknowledged(void) {
  fathom_submit_options o = options();
  o.flags = FATHOM_SUBMIT_ACK | FATHOM_SUBMIT_NO_CACHE;
  o.max_tokens = 100;
  o.max_unread_tokens = 1; /* raised to what steps need */
  o.params_json = str("{\"ignore_eos\":true}");
  fathom_request_id id = submit(&o);
  uint32_t total = 0;
  for (int done = 0; !done;) {
    const fathom_event *ev;
    size_t n;
    CHECK_STATUS(fathom_queue_poll(w.q, w.b, -1, &ev, &n, NULL), FATHOM_OK);
    for (size_t i = 0; i < n; i++) {
      CHECK(ev[i].request == id);
      done |= ev[i].kind == FATHOM_EVENT_DONE;
      uint32_t count = ev[i].kind == FATHOM_EVENT_TOKENS ? (uint32_t)ev[i].token_count : 0;
      total += count;
      CHECK_STATUS(fathom_ack(w.e, &ev[i].request, &count, 1), FATHOM_OK);
    }
  }
  CHECK(total == 100);
  uint32_t many = UINT32_MAX;
  CHECK_STATUS(fathom_ack(w.e, &id, &many, 1), FATHOM_OK);
  CHECK_STATUS(fathom_ack(w.e, NULL, &many, 1), BAD);
  CHECK_STATUS(fathom_ack(w.e, &id, NULL, 1), BAD);
}

/* One constraint serves requests of both kinds, and outlives its handle. */
static void constrained(void) {
  fathom_error *err = NULL;
  fathom_tokenizer *t = NULL;
  fathom_constraint *c = NULL;
  CHECK_STATUS(fathom_recipe_tokenizer(w.r, &t), FATHOM_OK);
  CHECK_OK(fathom_constraint_new(t, FATHOM_CONSTRAINT_REGEX, "[0-9]{3}-[0-9]{4}", 17, &c, &err), err);
  fathom_submit_options o = options();
  o.max_tokens = 40;
  o.constraint = c;
  outcome held = collect(submit(&o), 0);
  o.params_json = str("{\"trigger\":[4037],\"bound\":4037}");
  fathom_request_id second = submit(&o);
  o.params_json = str("{\"constraint_start\":\"after_thinking\"}");
  fathom_request_id id = 0;
  CHECK_PARAM(fathom_submit_tokens(w.e, w.q, PROMPT, &o, &id, &err), BAD, "constraint_start");
  o.params_json = str("{\"trigger\":[1000000]}");
  CHECK_PARAM(fathom_submit_tokens(w.e, w.q, PROMPT, &o, &id, &err), BAD, "trigger");
  fathom_constraint_free(c);
  o.constraint = NULL;
  CHECK_PARAM(fathom_submit_tokens(w.e, w.q, PROMPT, &o, &id, &err), BAD, "constraint_start");

  outcome free_first = collect(second, 0);
  CHECK(free_first.finish == FATHOM_FINISH_LENGTH && free_first.count == 40);
  CHECK(held.finish == FATHOM_FINISH_STOP && held.status == FATHOM_OK);
  CHECK(strstr(held.detail, "\"reason\":\"constraint_complete\"") != NULL);
  fathom_buf *text = NULL;
  CHECK_OK(fathom_tokenizer_decode(t, held.tokens, held.count, 0, &text, &err), err);
  size_t len;
  const char *bytes = (const char *)fathom_buf_data(text, &len);
  CHECK(len == 8 && bytes[3] == '-');
  for (size_t i = 0; i < len; i++) CHECK(i == 3 || (bytes[i] >= '0' && bytes[i] <= '9'));
  fathom_buf_free(text);
  fathom_tokenizer_free(t);
}

static void *wake_soon(void *q) {
  CHECK_STATUS(fathom_queue_wake(q), FATHOM_OK);
  return NULL;
}

static void ready(void *user_data) { __atomic_add_fetch((int *)user_data, 1, __ATOMIC_SEQ_CST); }
static void dropped(void *user_data) { __atomic_add_fetch((int *)user_data, 1000, __ATOMIC_SEQ_CST); }

static void waiting(void) {
  const fathom_event *ev = (const void *)1;
  size_t n = 7;
  CHECK_STATUS(fathom_queue_poll(w.q, w.b, 0, &ev, &n, NULL), FATHOM_OK);
  CHECK(ev == NULL && n == 0);
  CHECK_STATUS(fathom_queue_poll(w.q, w.b, 5, &ev, &n, NULL), FATHOM_OK);
  CHECK(n == 0);
  CHECK_PARAM(fathom_queue_poll(w.q, w.b, -2, &ev, &n, &err), BAD, "timeout_ms");
  CHECK_PARAM(fathom_queue_poll(w.q, w.b, 0, NULL, &n, &err), BAD, "events");
  CHECK_PARAM(fathom_queue_poll(w.q, w.b, 0, &ev, NULL, &err), BAD, "count");
  CHECK_PARAM(fathom_queue_poll(w.q, NULL, 0, &ev, &n, &err), BAD, "b");

  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, wake_soon, w.q) == 0);
  CHECK_STATUS(fathom_queue_poll(w.q, w.b, -1, &ev, &n, NULL), FATHOM_OK);
  CHECK(n == 0);
  pthread_join(thread, NULL);

  intptr_t fd = -1;
  CHECK_STATUS(fathom_queue_fd(w.q, &fd), FATHOM_OK);
  struct pollfd p = {.fd = (int)fd, .events = POLLIN};
  CHECK(poll(&p, 1, 0) == 0);
  int calls = 0;
  CHECK_STATUS(fathom_queue_on_ready(w.q, ready, &calls, dropped), FATHOM_OK);
  fathom_submit_options o = options();
  fathom_request_id id = submit(&o);
  CHECK(poll(&p, 1, 60000) == 1);
  (void)collect(id, 0);
  CHECK(poll(&p, 1, 0) == 0);
  CHECK_STATUS(fathom_queue_on_ready(w.q, NULL, NULL, NULL), FATHOM_OK);
  CHECK(calls >= 1001); /* called, and dropped */
  CHECK_STATUS(fathom_queue_fd(w.q, NULL), BAD);
}

/* A binary with a shorter or a longer fathom_event walks the array by its own size. */
static void strides(void) {
  for (size_t size = sizeof(fathom_event) - 16; size <= sizeof(fathom_event) + 48; size += 64) {
    fathom_batch *b = NULL;
    CHECK_STATUS(fathom_batch_new(size, &b), FATHOM_OK);
    fathom_submit_options o = options();
    fathom_request_id first = submit(&o), second = submit(&o);
    int done = 0;
    while (done < 2) {
      const fathom_event *ev;
      size_t n;
      CHECK_STATUS(fathom_queue_poll(w.q, b, -1, &ev, &n, NULL), FATHOM_OK);
      for (size_t i = 0; i < n; i++) {
        const unsigned char *at = (const unsigned char *)ev + i * size;
        const fathom_event *one = (const void *)at;
        CHECK(one->request == first || one->request == second);
        done += one->kind == FATHOM_EVENT_DONE;
        for (size_t k = sizeof(fathom_event); k < size; k++) CHECK(at[k] == 0);
      }
    }
    fathom_batch_free(b);
  }
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  w = open_world(argv[1]);
  good();
  refused();
  ends();
  acknowledged();
  constrained();
  waiting();
  strides();
  fathom_engine_stats stats = {.struct_size = sizeof stats};
  CHECK_STATUS(fathom_engine_stats_get(w.e, &stats), FATHOM_OK);
  CHECK(stats.requests_accepted >= 8 && stats.requests_cancelled >= 2 && stats.requests_refused >= 1);
  close_world(w);
  return 0;
}
