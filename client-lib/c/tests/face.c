/*
 * The C program of the tests: `face SCENARIO TARGET`. Each scenario prints the taken samples as "id" lines, or
 * nothing, and exits with status 0; a failed check ends it with the line and the last error.
 */
#define _DEFAULT_SOURCE

#include <forebay.h>

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, forebay_last_error());             \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

static const char *target;
static volatile sig_atomic_t asked_to_stop;
static volatile sig_atomic_t times_asked;

static forebay_loader *open_from(const char *state)
{
    forebay_options options = FOREBAY_OPTIONS_INIT;
    forebay_loader *loader;
    options.target = target;
    options.state = state;
    options.timeout_seconds = 90;
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_OK);
    return loader;
}

static forebay_batch *take(forebay_loader *loader)
{
    forebay_batch *batch = NULL;
    CHECK(forebay_loader_next(loader, &batch) == FOREBAY_OK && batch != NULL);
    return batch;
}

static int64_t first_id(const forebay_batch *batch)
{
    forebay_tensor index = FOREBAY_TENSOR_INIT;
    CHECK(forebay_batch_find_tensor(batch, "index", &index) == FOREBAY_OK);
    return *(const int64_t *)index.data;
}

static void print_ids(const forebay_batch *batch)
{
    forebay_batch_info info = FOREBAY_BATCH_INFO_INIT;
    forebay_tensor index = FOREBAY_TENSOR_INIT;
    uint64_t row;
    CHECK(forebay_batch_get_info(batch, &info) == FOREBAY_OK);
    CHECK(forebay_batch_find_tensor(batch, "index", &index) == FOREBAY_OK);
    CHECK(index.dtype.code == FOREBAY_DTYPE_INT && index.dtype.bits == 64 && index.dtype.lanes == 1);
    CHECK(index.rank == 1 && (uint64_t)index.shape[0] == info.rows && index.strides[0] == 1);
    for (row = 0; row < info.rows; ++row)
        printf("%" PRId64 "\n", ((const int64_t *)index.data)[row]);
}

static void print_rest_of_epoch(forebay_loader *loader)
{
    forebay_batch *batch;
    int status;
    while ((status = forebay_loader_next(loader, &batch)) == FOREBAY_OK) {
        print_ids(batch);
        CHECK(forebay_batch_release(batch) == FOREBAY_OK);
    }
    CHECK(status == FOREBAY_END && batch == NULL);
}

/* Three batches, then the rest in a second session; the state in between goes through a text. */
static void resume(void)
{
    forebay_loader *loader = open_from(NULL);
    forebay_batch *batch;
    char *state = NULL, *older = NULL;
    int count;
    for (count = 0; count < 3; ++count) {
        batch = take(loader);
        print_ids(batch);
        CHECK(forebay_batch_release(batch) == FOREBAY_OK);
    }
    CHECK(forebay_loader_state(loader, 0, &state) == FOREBAY_OK && strchr(state, '\n') == NULL);
    CHECK(forebay_loader_state(loader, 1, &older) == FOREBAY_OK && strcmp(state, older) != 0);
    CHECK(forebay_loader_close(loader) == FOREBAY_OK);
    loader = open_from(state);
    print_rest_of_epoch(loader);
    /* The same again, in a session at another position. */
    CHECK(forebay_loader_load_state(loader, state, 0) == FOREBAY_OK);
    print_rest_of_epoch(loader);
    CHECK(forebay_loader_load_state(loader, "{}", 0) == FOREBAY_ERROR_STATE_MISMATCH);
    CHECK(forebay_loader_close(loader) == FOREBAY_OK);
    CHECK(forebay_text_free(state) == FOREBAY_OK && forebay_text_free(older) == FOREBAY_OK);
    CHECK(forebay_text_free(older) == FOREBAY_ERROR_ARGUMENT);
}

/* Manual epochs: a jump, a seek, an early end, and taking without waiting. */
static void epochs(void)
{
    forebay_loader *loader = open_from(NULL);
    forebay_loader_info info = FOREBAY_LOADER_INFO_INIT;
    forebay_batch_info last = FOREBAY_BATCH_INFO_INIT;
    forebay_batch *batch;
    char *figures = NULL;
    int status;
    CHECK(forebay_loader_try_next(loader, &batch) == FOREBAY_END);
    CHECK(forebay_loader_begin_epoch(loader) == FOREBAY_OK);
    while ((status = forebay_loader_try_next(loader, &batch)) >= 0 && status != FOREBAY_END) {
        if (status == FOREBAY_WAITING) {
            CHECK(batch == NULL && forebay_loader_wait(loader) == FOREBAY_OK);
            continue;
        }
        print_ids(batch);
        CHECK(forebay_batch_get_info(batch, &last) == FOREBAY_OK);
        CHECK(forebay_batch_release(batch) == FOREBAY_OK);
    }
    CHECK(status == FOREBAY_END && last.is_last_of_epoch == 1 && last.epoch == 0 && last.epoch_after == 1);
    CHECK(forebay_loader_set_epoch(loader, 1) == FOREBAY_OK);
    forebay_batch_release(take(loader));
    CHECK(forebay_loader_begin_epoch(loader) == FOREBAY_ERROR_EPOCHS_FINISHED);
    CHECK(forebay_loader_get_info(loader, &info) == FOREBAY_OK);
    CHECK(info.epochs == 2 && info.given_up == info.batches_per_epoch - 1 && info.held == 0 && info.restarts == 0);
    CHECK(forebay_loader_seek(loader, 1, info.batch_size) == FOREBAY_OK);
    print_rest_of_epoch(loader);
    CHECK(forebay_loader_stats(loader, &figures) == FOREBAY_OK);
    printf("%s\n", figures);
    CHECK(forebay_text_free(figures) == FOREBAY_OK);
    CHECK(forebay_loader_close(loader) == FOREBAY_OK);
}

/* No error of a caller ends the process, and a failure leaves the loader usable. */
static void arguments(void)
{
    forebay_options options = FOREBAY_OPTIONS_INIT;
    forebay_batch_info info = FOREBAY_BATCH_INFO_INIT;
    forebay_tensor tensor = FOREBAY_TENSOR_INIT;
    forebay_loader *loader = (forebay_loader *)&options;
    forebay_batch *batch, *second, *kept[16];
    char version[32];
    int count = 0, status;
    sprintf(version, "%d.%d.%d", FOREBAY_VERSION_MAJOR, FOREBAY_VERSION_MINOR, FOREBAY_VERSION_PATCH);
    CHECK(strcmp(forebay_version(), version) == 0);
    CHECK(forebay_loader_open(NULL, &loader) == FOREBAY_ERROR_ARGUMENT && loader == NULL);
    CHECK(forebay_loader_open(&options, NULL) == FOREBAY_ERROR_ARGUMENT);
    options.size = 8;
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_ERROR_ARGUMENT);
    CHECK(strstr(forebay_last_error(), "FOREBAY_OPTIONS_INIT") != NULL);
    options.size = sizeof(options);
    options.target = "\xff";
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_ERROR_ARGUMENT);
    options.target = target;
    options.rank = 1;
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_ERROR_ARGUMENT);
    options.rank = 0;
    options.timeout_seconds = -1;
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_ERROR_ARGUMENT);
    options.timeout_seconds = 90;
    options.trainer = "two\nlines";
    options.shared = "\xff";
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_ERROR_ARGUMENT);
    options.trainer = NULL;
    options.shared = NULL;
    options.batch_size = 2;
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_OK);
    batch = take(loader);
    CHECK(forebay_batch_get_info(batch, &info) == FOREBAY_OK && info.rows == 2);
    CHECK(forebay_batch_release(batch) == FOREBAY_OK && forebay_loader_close(loader) == FOREBAY_OK);
    loader = NULL;
    batch = NULL;
    CHECK(forebay_loader_next(NULL, &batch) == FOREBAY_ERROR_ARGUMENT);
    CHECK(forebay_loader_close(NULL) == FOREBAY_OK && forebay_batch_release(NULL) == FOREBAY_OK);
    CHECK(forebay_text_free(NULL) == FOREBAY_OK);

    loader = open_from(NULL);
    CHECK(forebay_loader_next(loader, NULL) == FOREBAY_ERROR_ARGUMENT);
    CHECK(forebay_loader_state(loader, 0, NULL) == FOREBAY_ERROR_ARGUMENT);
    CHECK(forebay_loader_load_state(loader, NULL, 0) == FOREBAY_ERROR_ARGUMENT);
    batch = take(loader);
    /* A handle of the other kind. */
    CHECK(forebay_batch_get_info((forebay_batch *)loader, &info) == FOREBAY_ERROR_ARGUMENT);
    CHECK(forebay_batch_get_info(batch, NULL) == FOREBAY_ERROR_ARGUMENT);
    CHECK(forebay_batch_find_tensor(batch, NULL, &tensor) == FOREBAY_ERROR_ARGUMENT);
    CHECK(forebay_batch_find_tensor(batch, "indeks", &tensor) == FOREBAY_ERROR_NO_SUCH_TENSOR);
    CHECK(strstr(forebay_last_error(), "index") != NULL);
    CHECK(forebay_batch_get_tensor(batch, 64, &tensor) == FOREBAY_ERROR_NO_SUCH_TENSOR);
    tensor.size = 0;
    CHECK(forebay_batch_get_tensor(batch, 0, &tensor) == FOREBAY_ERROR_ARGUMENT);
    CHECK(forebay_batch_retain(batch, &second) == FOREBAY_OK && second != batch);
    CHECK(forebay_batch_release(batch) == FOREBAY_OK);
    CHECK(forebay_batch_release(batch) == FOREBAY_ERROR_ARGUMENT);
    CHECK(forebay_batch_get_info(batch, &info) == FOREBAY_ERROR_ARGUMENT);
    CHECK(forebay_batch_get_info(second, &info) == FOREBAY_OK && info.number == 0);
    /* Three slots: two batches are kept and a third is requested. */
    while (count < 16 && (status = forebay_loader_next(loader, &kept[count])) == FOREBAY_OK)
        ++count;
    CHECK(status == FOREBAY_ERROR_HOLD_LIMIT && strstr(forebay_last_error(), "ring.hold") != NULL);
    CHECK(forebay_batch_release(second) == FOREBAY_OK);
    forebay_batch_release(take(loader));
    while (count > 0)
        CHECK(forebay_batch_release(kept[--count]) == FOREBAY_OK);
    CHECK(forebay_loader_close(loader) == FOREBAY_OK);
    CHECK(forebay_loader_close(loader) == FOREBAY_ERROR_ARGUMENT);
    CHECK(forebay_loader_next(loader, &batch) == FOREBAY_ERROR_ARGUMENT && batch == NULL);
    CHECK(strcmp(forebay_status_name(FOREBAY_ERROR_DAEMON_LOST), "daemon-lost") == 0);
    CHECK(strcmp(forebay_status_name(99), "unknown") == 0);
}

/* A configuration as text, whose paths start at the target's folder, with an override. */
static void from_text(void)
{
    static const forebay_override overrides[] = {{"batch.size", "4"}, {"order.epochs", "1"}};
    forebay_options options = FOREBAY_OPTIONS_INIT;
    forebay_loader_info info = FOREBAY_LOADER_INFO_INIT;
    forebay_loader *loader;
    options.json = "{\"dataset\": {\"path\": \"data/samples.npy\", \"format\": \"npy\"}, \"batch\": {\"size\": 16}, "
                   "\"cpu\": {\"policy\": \"normal\"}, \"stage\": [{\"name\": \"copy\", \"operations\": []}]}";
    options.folder = target;
    options.overrides = overrides;
    options.override_count = sizeof(overrides) / sizeof(overrides[0]);
    options.rank = 1;
    options.world_size = 2;
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_OK);
    CHECK(forebay_loader_get_info(loader, &info) == FOREBAY_OK);
    CHECK(info.batch_size == 4 && info.epochs == 1 && info.rank == 1 && info.world_size == 2);
    CHECK(info.tensor_count == 2 && info.samples_per_epoch == 48 && info.daemon_process != 0);
    print_rest_of_epoch(loader);
    CHECK(forebay_loader_close(loader) == FOREBAY_OK);
    options.target = target;
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_ERROR_ARGUMENT);
    CHECK(strstr(forebay_last_error(), "`json`") != NULL);
}

/* Streams of a running daemon, by its socket and by the variable. */
static void streams(void)
{
    forebay_options options = FOREBAY_OPTIONS_INIT;
    forebay_loader *loader;
    options.target = target;
    options.stream = "big";
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_ERROR_CONFIG);
    CHECK(strstr(forebay_last_error(), "small") != NULL);
    options.stream = "small";
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_OK);
    CHECK(forebay_loader_close(loader) == FOREBAY_OK);
    CHECK(setenv("FOREBAY_SOCKET", target, 1) == 0);
    options.target = NULL;
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_OK);
    print_rest_of_epoch(loader);
    CHECK(forebay_loader_close(loader) == FOREBAY_OK);
}

/* Opens the target and prints the status and the message. */
static void refused(void)
{
    forebay_options options = FOREBAY_OPTIONS_INIT;
    forebay_loader *loader;
    int status;
    options.target = target;
    status = forebay_loader_open(&options, &loader);
    CHECK(status < 0 && loader == NULL);
    printf("%s: %s\n", forebay_status_name(status), forebay_last_error());
}

/* Closes the loader when the other thread waits in it. */
static void *close_it(void *loader)
{
    sig_atomic_t before = times_asked;
    while (times_asked == before)
        usleep(1000);
    CHECK(forebay_loader_close((forebay_loader *)loader) == FOREBAY_OK);
    return NULL;
}

static int is_asked_to_stop(void *context)
{
    CHECK(context == &asked_to_stop);
    ++times_asked;
    return asked_to_stop;
}

static void ask_to_stop(int number)
{
    (void)number;
    asked_to_stop = 1;
}

/* A wait for a batch that does not come is ended by the callback, then by another thread's close. */
static void waits(void)
{
    forebay_options options = FOREBAY_OPTIONS_INIT;
    forebay_loader *loader;
    forebay_batch *batch;
    pthread_t thread;
    options.target = target;
    options.interrupt = is_asked_to_stop;
    options.interrupt_context = (void *)&asked_to_stop;
    signal(SIGALRM, ask_to_stop);
    CHECK(forebay_loader_open(&options, &loader) == FOREBAY_OK);
    alarm(1);
    CHECK(forebay_loader_next(loader, &batch) == FOREBAY_ERROR_INTERRUPTED && times_asked > 0);
    asked_to_stop = 0;
    CHECK(pthread_create(&thread, NULL, close_it, loader) == 0);
    CHECK(forebay_loader_next(loader, &batch) == FOREBAY_ERROR_CLOSED);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A batch outlives its loader, and its bytes remain valid. */
static void held(void)
{
    forebay_loader *loader = open_from(NULL);
    forebay_batch *batch = take(loader);
    forebay_tensor tensor = FOREBAY_TENSOR_INIT;
    unsigned char *copy;
    CHECK(forebay_batch_find_tensor(batch, "array", &tensor) == FOREBAY_OK && tensor.bytes > 0);
    CHECK(strcmp(tensor.name, "array") == 0 && tensor.dtype.code == FOREBAY_DTYPE_FLOAT && tensor.dtype.bits == 32);
    CHECK(tensor.rank == 3 && tensor.shape[0] == 4 && tensor.shape[1] == 2 && tensor.shape[2] == 3 && tensor.shape[3] == 0);
    CHECK(tensor.strides[0] == 6 && tensor.strides[1] == 3 && tensor.strides[2] == 1 && tensor.strides[3] == 0);
    CHECK(tensor.bytes == 4 * 2 * 3 * 4 && tensor.offsets == NULL && tensor.lengths == NULL && tensor.channels_last == 0);
    copy = malloc(tensor.bytes);
    CHECK(copy != NULL);
    memcpy(copy, tensor.data, tensor.bytes);
    CHECK(forebay_loader_close(loader) == FOREBAY_OK);
    CHECK(memcmp(copy, tensor.data, tensor.bytes) == 0);
    /* It is still writable. */
    memset(tensor.data, 7, tensor.bytes);
    print_ids(batch);
    CHECK(forebay_batch_release(batch) == FOREBAY_OK);
    free(copy);
}

/* The private daemon is killed after the first batch, which is kept; the epoch continues. */
static void killed(void)
{
    forebay_loader *loader = open_from(NULL);
    forebay_loader_info before = FOREBAY_LOADER_INFO_INIT, after = FOREBAY_LOADER_INFO_INIT;
    forebay_batch *first = take(loader);
    int64_t id = first_id(first);
    print_ids(first);
    CHECK(forebay_loader_get_info(loader, &before) == FOREBAY_OK && before.daemon_process > 1);
    CHECK(kill((pid_t)before.daemon_process, SIGKILL) == 0);
    print_rest_of_epoch(loader);
    CHECK(forebay_loader_get_info(loader, &after) == FOREBAY_OK);
    CHECK(after.restarts == 1 && after.daemon_process != before.daemon_process);
    CHECK(first_id(first) == id);
    CHECK(forebay_batch_release(first) == FOREBAY_OK);
    CHECK(forebay_loader_close(loader) == FOREBAY_OK);
}

/* In a child the parent's objects can be neither used nor returned; its own objects can. */
static void forked(void)
{
    forebay_loader *loader = open_from(NULL), *own;
    forebay_batch *batch = take(loader), *other;
    forebay_batch_info info = FOREBAY_BATCH_INFO_INIT;
    char *state;
    pid_t child;
    int status;
    CHECK(forebay_loader_state(loader, 0, &state) == FOREBAY_OK);
    print_ids(batch);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(forebay_loader_next(loader, &other) == FOREBAY_ERROR_FORKED);
        CHECK(strstr(forebay_last_error(), "attach in the child") != NULL);
        CHECK(forebay_batch_get_info(batch, &info) == FOREBAY_ERROR_FORKED);
        CHECK(forebay_batch_release(batch) == FOREBAY_ERROR_FORKED);
        CHECK(forebay_text_free(state) == FOREBAY_ERROR_FORKED);
        CHECK(forebay_loader_close(loader) == FOREBAY_ERROR_FORKED);
        own = open_from(NULL);
        other = take(own);
        CHECK(forebay_batch_release(batch) == FOREBAY_ERROR_FORKED);
        CHECK(forebay_batch_release(other) == FOREBAY_OK && forebay_loader_close(own) == FOREBAY_OK);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    print_rest_of_epoch(loader);
    CHECK(forebay_batch_release(batch) == FOREBAY_OK && forebay_text_free(state) == FOREBAY_OK);
    CHECK(forebay_loader_close(loader) == FOREBAY_OK);
}

/* Boxes of [n, 4] that depend on the sample, n = id % 5. */
static void boxes(void)
{
    forebay_loader *loader = open_from(NULL);
    forebay_batch *batch = take(loader);
    forebay_tensor index = FOREBAY_TENSOR_INIT, boxes = FOREBAY_TENSOR_INIT;
    uint64_t place;
    int64_t row;
    CHECK(forebay_batch_find_tensor(batch, "index", &index) == FOREBAY_OK && index.row_rank == 0);
    CHECK(forebay_batch_find_tensor(batch, "boxes", &boxes) == FOREBAY_OK && boxes.rank == 1 && boxes.row_rank == 1);
    CHECK(boxes.row_shape[0] == 4 && boxes.row_shape[1] == 0);
    for (row = 0; row < index.shape[0]; ++row) {
        int64_t id = ((const int64_t *)index.data)[row];
        CHECK((int64_t)boxes.lengths[row] == 4 * (id % 5));
        for (place = 0; place < boxes.lengths[row]; ++place)
            CHECK(((const float *)boxes.data)[boxes.offsets[row] + place] == (float)id);
    }
    print_ids(batch);
    CHECK(forebay_batch_release(batch) == FOREBAY_OK && forebay_loader_close(loader) == FOREBAY_OK);
}

/* Lists of id % 5 + 1 numbers, padded with -1. */
static void padded(void)
{
    forebay_loader *loader = open_from(NULL);
    forebay_batch *batch = take(loader);
    forebay_tensor index = FOREBAY_TENSOR_INIT;
    forebay_padded padded = FOREBAY_PADDED_INIT;
    int64_t lengths[4], row, place;
    CHECK(forebay_batch_find_tensor(batch, "index", &index) == FOREBAY_OK && index.shape[0] == 4);
    CHECK(forebay_batch_pad(batch, "index", &padded) == FOREBAY_ERROR_NO_SUCH_TENSOR);
    CHECK(forebay_batch_pad(batch, "tokens", &padded) == FOREBAY_OK);
    CHECK(padded.rank == 2 && padded.shape[0] == 4 && padded.shape[1] == 8 && padded.shape[2] == 0);
    CHECK(padded.bytes == 4 * 8 * sizeof(int64_t));
    padded.data = malloc(padded.bytes);
    padded.lengths = lengths;
    CHECK(padded.data != NULL);
    padded.bytes -= 1;
    CHECK(forebay_batch_pad(batch, "tokens", &padded) == FOREBAY_ERROR_ARGUMENT);
    padded.bytes += 1;
    CHECK(forebay_batch_pad(batch, "tokens", &padded) == FOREBAY_OK);
    for (row = 0; row < 4; ++row) {
        int64_t id = ((const int64_t *)index.data)[row];
        CHECK(lengths[row] == id % 5 + 1);
        for (place = 0; place < 8; ++place)
            CHECK(((const int64_t *)padded.data)[8 * row + place] == (place < lengths[row] ? id : -1));
    }
    print_ids(batch);
    free(padded.data);
    CHECK(forebay_batch_release(batch) == FOREBAY_OK && forebay_loader_close(loader) == FOREBAY_OK);
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {{"resume", resume},   {"epochs", epochs}, {"arguments", arguments}, {"refused", refused},
                     {"waits", waits},     {"held", held},     {"killed", killed},
                     {"forked", forked},   {"json", from_text}, {"streams", streams}, {"boxes", boxes},
                     {"padded", padded}};
    size_t place;
    CHECK(count == 3);
    target = words[2];
    for (place = 0; place < sizeof(scenarios) / sizeof(scenarios[0]); ++place) {
        if (strcmp(scenarios[place].name, words[1]) == 0) {
            scenarios[place].run();
            return 0;
        }
    }
    fprintf(stderr, "no scenario %s\n", words[1]);
    return 2;
}
