/* Version, statuses, devices, buffers, errors, log. */
#include "check.h"

static int dropped, logged;

static void drop(void *user_data) { *(int *)user_data += 1; }
static void log_fn(void *user_data, int32_t level, const char *target, size_t target_len, const char *message,
                   size_t message_len) {
  (void)user_data, (void)level, (void)target, (void)target_len, (void)message, (void)message_len;
  logged++;
}
static void log_that_calls_back(void *user_data, int32_t level, const char *target, size_t target_len,
                                const char *message, size_t message_len) {
  (void)level, (void)target, (void)target_len, (void)message, (void)message_len;
  *(fathom_status *)user_data = fathom_set_log(0, NULL, NULL, NULL);
}

static void names(void) {
  CHECK(fathom_abi_version() == FATHOM_ABI_VERSION);
  CHECK(strchr(fathom_version(), '.') != NULL);
  CHECK(strcmp(fathom_status_name(FATHOM_ERR_BUSY), "FATHOM_ERR_BUSY") == 0);
  CHECK(strcmp(fathom_status_name(FATHOM_OK), "FATHOM_OK") == 0);
  CHECK(strcmp(fathom_status_name(0xFF), "unknown") == 0);
  CHECK(strcmp(fathom_status_name(INT32_MIN), "unknown") == 0);
  const char *info = fathom_build_info();
  CHECK(has(info, strlen(info), "\"version\":\"") && has(info, strlen(info), "\"missing\":["));
}

static void devices(void) {
  fathom_buf *b = NULL;
  fathom_error *err = NULL;
  CHECK_OK(fathom_devices(&b, &err), err);
  CHECK(err == NULL);
  size_t len = 0;
  CHECK(fathom_buf_data(b, NULL) == fathom_buf_data(b, &len) && len > 2);
  check_buf(b, "\"device\":\"cpu\"");
  /* Freed: nothing, instead of a crash. */
  len = 7;
  CHECK(fathom_buf_data(b, &len) == NULL && len == 0);
  fathom_buf_free(b);
  CHECK_PARAM(fathom_devices(NULL, &err), FATHOM_ERR_INVALID_ARGUMENT, "out_json");
  CHECK_STATUS(fathom_devices(NULL, NULL), FATHOM_ERR_INVALID_ARGUMENT);
}

static void errors(void) {
  fathom_error *err = NULL, *kept;
  CHECK_STATUS(fathom_devices(NULL, &err), FATHOM_ERR_INVALID_ARGUMENT);
  CHECK(fathom_error_http_status(err) == 500);
  kept = fathom_error_retain(err);
  CHECK(kept != NULL && kept != err);
  fathom_error_free(err);
  fathom_error_free(err); /* twice */
  size_t len = 7;
  CHECK(fathom_error_message(err, &len) == NULL && len == 0);
  CHECK(fathom_error_status(err) == FATHOM_ERR_INVALID_ARGUMENT);
  CHECK(fathom_error_retain(err) == NULL);
  CHECK(strcmp(fathom_error_param(kept, NULL), "out_json") == 0);

  fathom_buf *body = NULL;
  CHECK_STATUS(fathom_error_body(kept, 1, &body), FATHOM_OK);
  check_buf(body, "{\"error\":{\"message\":\"out_json is NULL\",\"type\":\"internal_error\",\"param\":null,");
  CHECK_STATUS(fathom_error_body(kept, FATHOM_PROTOCOL_MESSAGES, &body), FATHOM_OK);
  check_buf(body, "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",");
  CHECK_STATUS(fathom_error_body(kept, FATHOM_PROTOCOL_RESPONSES, &body), FATHOM_OK);
  check_buf(body, "\"code\":\"internal_error\"");
  CHECK_STATUS(fathom_error_body(kept, FATHOM_PROTOCOL_CONVERSATION, &body), FATHOM_OK);
  check_buf(body, "{\"status\":500,");
  CHECK_STATUS(fathom_error_body(kept, 0xFF, &body), FATHOM_ERR_INVALID_ARGUMENT);
  CHECK(body == NULL);
  CHECK_STATUS(fathom_error_body(kept, 1, NULL), FATHOM_ERR_INVALID_ARGUMENT);
  for (int i = 0; i < STRAY_COUNT; i++) {
    CHECK_STATUS(fathom_error_body(stray(i), 1, &body), FATHOM_ERR_INVALID_ARGUMENT);
    CHECK(fathom_error_message(stray(i), NULL) == NULL);
    CHECK(fathom_error_param(stray(i), NULL) == NULL);
    CHECK(fathom_error_http_status(stray(i)) == 500);
    CHECK(fathom_error_status(stray(i)) == FATHOM_ERR_INVALID_ARGUMENT);
    fathom_error_free(stray(i));
    CHECK(fathom_buf_data(stray(i), NULL) == NULL);
    fathom_buf_free(stray(i));
  }
  /* An error is no buffer, and stays what it is when freed as one. */
  fathom_buf_free((fathom_buf *)kept);
  CHECK(fathom_error_message(kept, NULL) != NULL);
  fathom_error_free(kept);
}

static void logs(void) {
  CHECK_STATUS(fathom_set_log(6, log_fn, NULL, NULL), FATHOM_ERR_INVALID_ARGUMENT);
  CHECK_STATUS(fathom_set_log(-1, log_fn, &dropped, drop), FATHOM_ERR_INVALID_ARGUMENT);
  CHECK(dropped == 0); /* not ours after a failure */
  CHECK_STATUS(fathom_set_log(5, log_fn, &dropped, drop), FATHOM_OK);
  CHECK_STATUS(fathom_set_log(5, log_fn, &dropped, drop), FATHOM_OK);
  CHECK(dropped == 1);
  fathom_status inside = FATHOM_OK;
  CHECK_STATUS(fathom_set_log(5, log_that_calls_back, &inside, NULL), FATHOM_OK);
  CHECK(dropped == 2);
  CHECK_STATUS(fathom_set_log(0, NULL, NULL, NULL), FATHOM_OK);
}

int main(void) {
  names();
  devices();
  errors();
  logs();
  return 0;
}
