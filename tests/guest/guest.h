/* The library as a guest loads it: late, by dlopen, with a table of the functions that the tests use. */
#ifndef FATHOM_TEST_GUEST_H
#define FATHOM_TEST_GUEST_H

#define GUEST
#include "../capi/check.h"
#include <dlfcn.h>

static void *load(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return library;
}

/* GET(fathom_queue_new) declares a pointer of that name's type, called `queue_new` and so on. */
#define GET(library, name)                                                      \
  __typeof__(&fathom_##name) name = (__typeof__(&fathom_##name))dlsym(library, "fathom_" #name); \
  CHECK(name != NULL)

#endif
