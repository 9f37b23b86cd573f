/* Loading and unloading, 200 times, while threads that used the library are alive and end afterwards.
 *
 *     reload LIBRARY [MODEL] */
#include "guest.h"
#include <pthread.h>
#include <unistd.h>

#define TIMES 200
#define LONG_LIVED 4

static pthread_barrier_t used, unloaded;
static const char *path;

/* Uses thread locals of the library, and ends after everybody has unloaded it. */
static void *long_lived(void *argument) {
  (void)argument;
  void *library = load(path);
  GET(library, devices);
  GET(library, error_free);
  fathom_error *err = NULL;
  CHECK_STATUS(devices(NULL, &err), FATHOM_ERR_INVALID_ARGUMENT);
  error_free(err);
  dlclose(library);
  pthread_barrier_wait(&used);
  pthread_barrier_wait(&unloaded);
  return NULL;
}

int main(int argc, char **argv) {
  CHECK(argc >= 2);
  path = argv[1];
  const char *model = argc > 2 ? argv[2] : NULL;
  pthread_t threads[LONG_LIVED];
  pthread_barrier_init(&used, NULL, LONG_LIVED + 1);
  pthread_barrier_init(&unloaded, NULL, LONG_LIVED + 1);
  for (int i = 0; i < LONG_LIVED; i++) CHECK(pthread_create(&threads[i], NULL, long_lived, NULL) == 0);
  pthread_barrier_wait(&used);

  for (int i = 0; i < TIMES; i++) {
    void *library = load(path);
    GET(library, batch_new);
    GET(library, batch_free);
    GET(library, abi_version);
    CHECK(abi_version() == FATHOM_ABI_VERSION);
    fathom_batch *b = NULL;
    CHECK_STATUS(batch_new(sizeof(fathom_event), &b), FATHOM_OK);
    if (model != NULL) {
      /* A queue with a thread of its own, alive while the library is closed. */
      GET(library, queue_new);
      GET(library, queue_poll);
      GET(library, queue_free);
      fathom_queue_options o = {.struct_size = sizeof o, .wake_interval_us = 1000};
      fathom_queue *q = NULL;
      const fathom_event *events;
      size_t count;
      CHECK_STATUS(queue_new(&o, &q, NULL), FATHOM_OK);
      CHECK_STATUS(queue_poll(q, b, 0, &events, &count, NULL), FATHOM_OK);
      CHECK(dlclose(library) == 0);
      /* nodelete: the code is still there, as it must be for the threads. */
      queue_free(q);
      batch_free(b);
      continue;
    }
    batch_free(b);
    CHECK(dlclose(library) == 0);
  }
  if (model != NULL) {
    void *library = load(path);
    GET(library, engine_options_init);
    GET(library, engine_open);
    fathom_engine_options o;
    engine_options_init(&o, sizeof o);
    o.model_path = str(model);
    o.device = str("cpu");
    fathom_engine *e = NULL;
    CHECK_STATUS(engine_open(&o, &e, NULL), FATHOM_OK);
    CHECK(dlclose(library) == 0);
    /* The process ends with the engine running, and nobody complains. */
  }
  pthread_barrier_wait(&unloaded);
  for (int i = 0; i < LONG_LIVED; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  return 0;
}
