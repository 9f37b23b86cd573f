/* A fork with a live engine: the child gets a status from engine and queue, and uses the rest.
 *
 *     forked LIBRARY MODEL */
#include "guest.h"
#include <sys/wait.h>
#include <unistd.h>

#define REQUEST "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"

int main(int argc, char **argv) {
  CHECK(argc == 3);
  const char *model = argv[2];
  void *library = load(argv[1]);
  GET(library, engine_options_init);
  GET(library, engine_open);
  GET(library, engine_state);
  GET(library, engine_free);
  GET(library, engine_shutdown);
  GET(library, queue_new);
  GET(library, queue_wake);
  GET(library, queue_poll);
  GET(library, queue_free);
  GET(library, batch_new);
  GET(library, batch_free);
  GET(library, submit_tokens);
  GET(library, call);
  GET(library, recipe_options_init);
  GET(library, recipe_open);
  GET(library, recipe_free);
  GET(library, recipe_tokenizer);
  GET(library, tokenizer_encode);
  GET(library, tokenizer_free);
  GET(library, prepare);
  GET(library, prepared_free);
  GET(library, parser_new);
  GET(library, parser_push_text);
  GET(library, parser_finish);
  GET(library, parser_free);
  GET(library, error_status);
  GET(library, error_free);

  fathom_engine_options o;
  engine_options_init(&o, sizeof o);
  o.model_path = str(model);
  o.device = str("cpu");
  fathom_engine *e = NULL;
  CHECK_STATUS(engine_open(&o, &e, NULL), FATHOM_OK);
  fathom_queue *q = NULL;
  CHECK_STATUS(queue_new(NULL, &q, NULL), FATHOM_OK);
  fathom_recipe_options ro;
  recipe_options_init(&ro, sizeof ro);
  ro.tokenizer_path = str(model);
  fathom_recipe *r = NULL;
  CHECK_STATUS(recipe_open(&ro, &r, NULL), FATHOM_OK);
  fathom_batch *b = NULL;
  CHECK_STATUS(batch_new(sizeof(fathom_event), &b), FATHOM_OK);
  uint32_t tokens[4] = {0, 5, 6, 7};
  fathom_request_id id;
  CHECK_STATUS(submit_tokens(e, q, tokens, 4, NULL, &id, NULL), FATHOM_OK);

  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(30); /* a lock that another thread held would hang here */
    fathom_error *err = NULL;
    const fathom_event *events;
    size_t count;
    CHECK_STATUS(submit_tokens(e, q, tokens, 4, NULL, &id, &err), FATHOM_ERR_FORKED);
    CHECK(error_status(err) == FATHOM_ERR_FORKED);
    error_free(err);
    CHECK_STATUS(call(e, r, q, 1, REQUEST, strlen(REQUEST), NULL, &id, NULL), FATHOM_ERR_FORKED);
    CHECK_STATUS(queue_poll(q, b, -1, &events, &count, NULL), FATHOM_ERR_FORKED);
    CHECK_STATUS(queue_wake(q), FATHOM_ERR_FORKED);
    CHECK_STATUS(engine_shutdown(e, 0, NULL), FATHOM_ERR_FORKED);
    CHECK(engine_state(e) == FATHOM_ENGINE_CLOSED);
    engine_free(e);
    queue_free(q);

    fathom_prepared *p = NULL;
    CHECK_STATUS(prepare(r, 1, REQUEST, strlen(REQUEST), &p, NULL), FATHOM_OK);
    fathom_parser *s = NULL;
    CHECK_STATUS(parser_new(p, &s, NULL), FATHOM_OK);
    CHECK_STATUS(parser_push_text(s, "Hello", 5, 1, b, &events, &count, NULL), FATHOM_OK);
    CHECK(count > 0);
    CHECK_STATUS(parser_finish(s, FATHOM_FINISH_STOP, NULL, b, &events, &count, NULL), FATHOM_OK);
    parser_free(s);
    prepared_free(p);
    fathom_tokenizer *t = NULL;
    CHECK_STATUS(recipe_tokenizer(r, &t), FATHOM_OK);
    size_t needed = 0;
    uint32_t ids[16];
    CHECK_STATUS(tokenizer_encode(t, "hello", 5, 0, ids, 16, &needed, NULL), FATHOM_OK);
    CHECK(needed > 0);
    tokenizer_free(t);
    recipe_free(r);
    batch_free(b);
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

  /* The parent's are what they were. */
  CHECK(engine_state(e) == FATHOM_ENGINE_READY);
  const fathom_event *events;
  size_t count;
  int done = 0;
  while (!done) {
    CHECK_STATUS(queue_poll(q, b, -1, &events, &count, NULL), FATHOM_OK);
    for (size_t i = 0; i < count; i++) done |= events[i].kind == FATHOM_EVENT_DONE;
  }
  engine_free(e);
  queue_free(q);
  recipe_free(r);
  batch_free(b);
  return 0;
}
