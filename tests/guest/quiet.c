/* Nothing of the process changes: signals, descriptors, environment, directory, umask, locale, sockets.
 *
 *     quiet LIBRARY [MODEL]
 *
 * What it prints itself would be a failure of the runner, which reads both pipes. */
#include "guest.h"
#include <dirent.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

typedef struct process {
  struct sigaction actions[65];
  sigset_t mask;
  char descriptors[4096], cwd[4096], locale[256];
  size_t environment;
  mode_t umask;
  int threads;
} process;

/* What every open descriptor is, in order of numbers. */
static void descriptors(char *out, size_t cap) {
  size_t used = 0;
  for (int fd = 0; fd < 1024; fd++) {
    char link[64], target[256];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, target, sizeof target - 1);
    if (len < 0) continue;
    target[len] = '\0';
    used += (size_t)snprintf(out + used, cap - used, "%d %s\n", fd, target);
    CHECK(used < cap);
  }
}

static int sockets(const char *descriptors) { return strstr(descriptors, "socket:") != NULL; }

static size_t hash_environment(void) {
  size_t hash = 5381;
  for (char **e = environ; *e != NULL; e++)
    for (char *c = *e; *c != '\0'; c++) hash = hash * 33 + (unsigned char)*c;
  return hash;
}

static void look(process *p) {
  memset(p, 0, sizeof *p);
  for (int s = 1; s < 65; s++) (void)sigaction(s, NULL, &p->actions[s]);
  pthread_sigmask(SIG_SETMASK, NULL, &p->mask);
  descriptors(p->descriptors, sizeof p->descriptors);
  CHECK(getcwd(p->cwd, sizeof p->cwd) != NULL);
  snprintf(p->locale, sizeof p->locale, "%s", setlocale(LC_ALL, NULL));
  p->environment = hash_environment();
  p->umask = umask(0);
  umask(p->umask);
}

static void compare(const process *before, const process *after) {
  for (int s = 1; s < 65; s++) {
    CHECK(before->actions[s].sa_handler == after->actions[s].sa_handler);
    CHECK(before->actions[s].sa_flags == after->actions[s].sa_flags);
  }
  CHECK(memcmp(&before->mask, &after->mask, sizeof before->mask) == 0);
  CHECK(strcmp(before->cwd, after->cwd) == 0);
  CHECK(strcmp(before->locale, after->locale) == 0);
  CHECK(before->environment == after->environment);
  CHECK(before->umask == after->umask);
}

/* Counts threads that are named as the library's, and those that are not (yet). Ours block what could arrive at
 * any time, from their first moment on. */
static int count_threads(int *unnamed) {
  int found = 0;
  *unnamed = 0;
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    if (task->d_name[0] == '.' || atoi(task->d_name) == getpid()) continue;
    char path[512], line[256], name[256] = "";
    unsigned long long blocked = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
    FILE *status = fopen(path, "r");
    if (status == NULL) continue; /* it has ended */
    while (fgets(line, sizeof line, status) != NULL) {
      sscanf(line, "Name: %255s", name);
      sscanf(line, "SigBlk: %llx", &blocked);
    }
    fclose(status);
    if (strncmp(name, "fathom-", 7) != 0) ++*unnamed;
    const int asynchronous[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE, SIGALRM, SIGURG};
    for (size_t i = 0; i < sizeof asynchronous / sizeof *asynchronous; i++)
      CHECK((blocked >> (asynchronous[i] - 1) & 1) == 1);
    found++;
  }
  closedir(tasks);
  return found;
}

/* Waits until every thread is named and their number is none, or not: a thread takes its name when it first runs,
 * and the kernel lists it a moment longer than a join waits for it. */
static void await_threads(int some) {
  int unnamed = 1, found = 0;
  for (int tries = 0; tries < 5000; tries++) {
    found = count_threads(&unnamed);
    if (unnamed == 0 && (found > 0) == some) return;
    usleep(1000);
  }
  fprintf(stderr, "%d threads, %d of them not named by the library\n", found, unnamed);
  exit(1);
}

static void use(void *library, const char *model) {
  GET(library, devices);
  GET(library, buf_free);
  GET(library, set_log);
  GET(library, error_free);
  fathom_buf *b = NULL;
  fathom_error *err = NULL;
  CHECK_STATUS(devices(&b, NULL), FATHOM_OK);
  buf_free(b);
  CHECK_STATUS(devices(NULL, &err), FATHOM_ERR_INVALID_ARGUMENT);
  error_free(err);
  CHECK_STATUS(set_log(0, NULL, NULL, NULL), FATHOM_OK);
  if (model == NULL) return;

  GET(library, engine_options_init);
  GET(library, engine_open);
  GET(library, engine_free);
  GET(library, recipe_options_init);
  GET(library, recipe_open);
  GET(library, recipe_free);
  GET(library, call_blocking);
  GET(library, error_message);
  fathom_engine_options o;
  engine_options_init(&o, sizeof o);
  o.model_path = str(model);
  o.device = str("cpu");
  fathom_engine *e = NULL;
  if (engine_open(&o, &e, &err) != FATHOM_OK) {
    fprintf(stderr, "%s\n", error_message(err, NULL));
    exit(1);
  }
  await_threads(1);
  fathom_recipe_options ro;
  recipe_options_init(&ro, sizeof ro);
  ro.tokenizer_path = str(model);
  fathom_recipe *r = NULL;
  CHECK_STATUS(recipe_open(&ro, &r, NULL), FATHOM_OK);
  const char *request =
      "{\"model\":\"DeepSeek-V4.1-Flash\",\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";
  CHECK_STATUS(call_blocking(e, r, 1, request, strlen(request), NULL, &b, NULL), FATHOM_OK);
  buf_free(b);
  char open_now[4096];
  descriptors(open_now, sizeof open_now);
  CHECK(!sockets(open_now));
  recipe_free(r);
  engine_free(e);
  await_threads(0);
}

int main(int argc, char **argv) {
  CHECK(argc >= 2);
  process before, after;
  look(&before);
  void *library = load(argv[1]);
  use(library, argc > 2 ? argv[2] : NULL);
  look(&after);
  compare(&before, &after);
  if (strcmp(before.descriptors, after.descriptors) != 0) {
    fprintf(stderr, "descriptors before:\n%safter:\n%s", before.descriptors, after.descriptors);
    return 1;
  }
  dlclose(library);
  return 0;
}
