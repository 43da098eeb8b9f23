/* A stand-in for NVIDIA's driver library, for tests on machines without a GPU.
 *
 * Work that is queued on a stream is done as late as the rules of CUDA allow: when somebody waits for it (an event or a
 * stream is synchronised, or another stream's work that was told to wait for it has to be done), and then only as much of
 * it as is waited for. So a slot that is given back too early, or a destination that is written to too early, delivers
 * wrong bytes, every time. Memory that is freed is overwritten. Whatever breaks a rule that a real driver may or may not
 * notice ends the process with the rule's name.
 *
 * It shows the order of calls, the paths of errors and the rules of leases and events. It shows nothing of real copies,
 * bandwidth, contexts of other libraries, or of what a device does with a kernel: the kernels are imitated in C
 * (stand_in_kernels.h).
 *
 * FOREBAY_STAND_IN_DEVICES  how many devices there are (2)
 * FOREBAY_STAND_IN_DELAY_MS how long a wait for an event sleeps before the work is done (0)
 * FOREBAY_STAND_IN_FAIL     what fails: "cuMemHostRegister_v2=801,cuMemcpyHtoDAsync_v2=2@7" (from the 7th call on)
 * FOREBAY_STAND_IN_LOG      a file that takes a line a call */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stand_in_kernels.h"

typedef int CUresult;
enum { OK = 0, INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
       ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, NOT_READY = 600, NOT_FOUND = 500 };

enum { MIXES = 16 };

enum kind { COPY_IN, COPY_OUT, COPY_OVER, WAIT, RECORD, FREE, KERNEL };

/* One record of an event: a wait means the record that was the latest when the wait was queued. Never freed. */
struct record {
    struct stream *stream;
    int is_done;
};

struct work {
    enum kind kind;
    uint8_t *to;
    const uint8_t *from;
    uint8_t *own; /* a copy of memory that is not pinned */
    size_t bytes;
    struct record *record;
    uint64_t numbers[11];
    int element_bytes; /* MIXES: the kernel of mix.ptx */
    struct work *next;
};

struct stream {
    int device;
    struct work *first, *last;
    struct stream *next;
};

struct event {
    int device;
    struct record *latest;
};

struct range {
    uint8_t *start;
    size_t bytes;
    struct range *next;
};

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct stream defaults[16][3];
static struct stream *streams;
static struct range *registered, *allocated;
/* A wait for an event failed: the device does nothing any more. */
static int is_lost;
static __thread int stack[16];
static __thread int depth;

static void violated(const char *rule) {
    fprintf(stderr, "stand-in driver: broken rule: %s\n", rule);
    abort();
}

static int device_count(void) {
    const char *text = getenv("FOREBAY_STAND_IN_DEVICES");
    return text ? atoi(text) : 2;
}

/* Writes the call down, and says whether it shall fail. */
static CUresult called(const char *name, const char *details) {
    static FILE *file;
    static int calls[64];
    static const char *names[64];
    CUresult result = OK;
    pthread_mutex_lock(&mutex);
    const char *path = getenv("FOREBAY_STAND_IN_LOG");
    if (path && !file) file = fopen(path, "a");
    if (file) { fprintf(file, "%s %s\n", name, details); fflush(file); }
    int number = 0;
    while (number < 63 && names[number] && strcmp(names[number], name)) number++;
    names[number] = name;
    calls[number]++;
    const char *fail = getenv("FOREBAY_STAND_IN_FAIL");
    size_t length = strlen(name);
    while (fail && *fail) {
        if (!strncmp(fail, name, length) && fail[length] == '=') {
            char *end;
            int code = (int)strtol(fail + length + 1, &end, 10);
            int from = *end == '@' ? (int)strtol(end + 1, &end, 10) : 1;
            if (calls[number] >= from) result = code;
        }
        fail = strchr(fail, ',');
        if (fail) fail++;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

#define CALLED(details)                                     \
    do {                                                    \
        CUresult failed = called(__func__, details);        \
        if (failed) return failed;                          \
    } while (0)

#define CALLED_IN_CONTEXT(details)                          \
    do {                                                    \
        CALLED(details);                                    \
        if (!depth || stack[depth - 1] < 0) return INVALID_CONTEXT; \
    } while (0)

static int current(void) { return depth ? stack[depth - 1] : -1; }

static struct range *find(struct range *list, const uint8_t *start, size_t bytes) {
    for (; list; list = list->next)
        if (start >= list->start && start + bytes <= list->start + list->bytes) return list;
    return NULL;
}

static void add(struct range **list, uint8_t *start, size_t bytes) {
    struct range *range = calloc(1, sizeof *range);
    range->start = start, range->bytes = bytes, range->next = *list, *list = range;
}

static size_t take_out(struct range **list, const uint8_t *start) {
    for (; *list; list = &(*list)->next)
        if ((*list)->start == start) {
            struct range *found = *list;
            size_t bytes = found->bytes;
            *list = found->next;
            free(found);
            return bytes;
        }
    return 0;
}

static struct stream *stream_of(void *handle) {
    uintptr_t number = (uintptr_t)handle;
    if (number > 2) return handle;
    struct stream *stream = &defaults[current()][number];
    stream->device = current();
    return stream;
}

static void do_until(struct record *record);

static void do_one(struct stream *stream) {
    struct work *work = stream->first;
    stream->first = work->next;
    if (!stream->first) stream->last = NULL;
    switch (is_lost && work->kind != WAIT ? RECORD : work->kind) {
    case COPY_IN:
        if (!work->own && !find(registered, work->from, work->bytes)) violated("memory was unregistered under a copy");
        memcpy(work->to, work->own ? work->own : work->from, work->bytes);
        break;
    case COPY_OUT:
    case COPY_OVER: memcpy(work->to, work->from, work->bytes); break;
    case WAIT: do_until(work->record); break;
    case RECORD:
        if (work->record) work->record->is_done = 1;
        break;
    case FREE:
        memset(work->to, 0xDD, work->bytes);
        free(work->to);
        break;
    case KERNEL:
        if (work->element_bytes == MIXES) finish_and_mix(work->numbers);
        else finish(work->numbers, (size_t)work->element_bytes);
        break;
    }
    free(work->own);
    free(work);
}

static void do_until(struct record *record) {
    while (!record->is_done) {
        if (!record->stream->first) violated("a wait for an event that nothing records");
        do_one(record->stream);
    }
}

static void queue(struct stream *stream, struct work work) {
    struct work *copy = malloc(sizeof *copy);
    *copy = work;
    copy->next = NULL;
    if (stream->last) stream->last->next = copy; else stream->first = copy;
    stream->last = copy;
}

CUresult cuInit(unsigned flags) { (void)flags; CALLED(""); return device_count() > 0 ? OK : NO_DEVICE; }
CUresult cuDeviceGetCount(int *count) { CALLED(""); *count = device_count(); return OK; }
CUresult cuDeviceGet(int *device, int ordinal) {
    CALLED("");
    if (ordinal < 0 || ordinal >= device_count()) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    CALLED("");
    *value = attribute == 115; /* memory pools */
    return OK;
}
CUresult cuDevicePrimaryCtxRetain(void **context, int device) { CALLED(""); *context = (void *)(uintptr_t)(device + 1); return OK; }
CUresult cuDevicePrimaryCtxRelease_v2(int device) { (void)device; CALLED(""); return OK; }
CUresult cuCtxGetCurrent(void **context) { *context = (void *)(uintptr_t)(current() + 1); return OK; }
CUresult cuCtxSetCurrent(void *context) {
    CALLED("");
    if (!depth) depth = 1;
    stack[depth - 1] = (int)(uintptr_t)context - 1;
    return OK;
}
CUresult cuCtxPushCurrent_v2(void *context) {
    if (depth == 16) violated("contexts are pushed and never popped");
    stack[depth++] = (int)(uintptr_t)context - 1;
    return OK;
}
CUresult cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    *context = (void *)(uintptr_t)(stack[--depth] + 1);
    return OK;
}

CUresult cuStreamCreate(void **made, unsigned flags) {
    CALLED_IN_CONTEXT("");
    if (flags != 1) violated("a side stream that waits for the default stream");
    pthread_mutex_lock(&mutex);
    struct stream *stream = calloc(1, sizeof *stream);
    stream->device = current(), stream->next = streams, streams = stream;
    pthread_mutex_unlock(&mutex);
    *made = stream;
    return OK;
}
/* What is queued is done before the stream goes; its memory stays, for work that names it. */
CUresult cuStreamDestroy_v2(void *handle) { CALLED(""); (void)handle; return OK; }
CUresult cuStreamSynchronize(void *handle) {
    CALLED_IN_CONTEXT("");
    pthread_mutex_lock(&mutex);
    struct stream *stream = stream_of(handle);
    while (stream->first) do_one(stream);
    pthread_mutex_unlock(&mutex);
    return OK;
}
CUresult cuCtxSynchronize(void) {
    CALLED_IN_CONTEXT("");
    pthread_mutex_lock(&mutex);
    for (struct stream *stream = streams; stream; stream = stream->next)
        while (stream->device == current() && stream->first) do_one(stream);
    for (int number = 0; number < 3; number++)
        while (defaults[current()][number].first) do_one(&defaults[current()][number]);
    pthread_mutex_unlock(&mutex);
    return OK;
}
CUresult cuThreadExchangeStreamCaptureMode(int *mode) { CALLED_IN_CONTEXT(*mode == 2 ? "relaxed" : "strict"); return OK; }
CUresult cuStreamWaitEvent(void *handle, struct event *event, unsigned flags) {
    (void)flags;
    CALLED_IN_CONTEXT("");
    pthread_mutex_lock(&mutex);
    if (event->latest && !event->latest->is_done)
        queue(stream_of(handle), (struct work){.kind = WAIT, .record = event->latest});
    pthread_mutex_unlock(&mutex);
    return OK;
}

CUresult cuEventCreate(struct event **made, unsigned flags) {
    CALLED_IN_CONTEXT("");
    if (!(flags & 2)) violated("an event that measures time");
    *made = calloc(1, sizeof **made);
    (*made)->device = current();
    return OK;
}
CUresult cuEventDestroy_v2(struct event *event) { CALLED(""); (void)event; return OK; }
CUresult cuEventRecord(struct event *event, void *handle) {
    CALLED_IN_CONTEXT("");
    pthread_mutex_lock(&mutex);
    struct stream *stream = stream_of(handle);
    if (stream->device != event->device || event->device != current()) violated("an event and a stream of two devices");
    event->latest = calloc(1, sizeof *event->latest);
    event->latest->stream = stream;
    queue(stream, (struct work){.kind = RECORD, .record = event->latest});
    pthread_mutex_unlock(&mutex);
    return OK;
}
CUresult cuEventSynchronize(struct event *event) {
    const char *delay = getenv("FOREBAY_STAND_IN_DELAY_MS");
    CUresult failed = called(__func__, "");
    if (failed) is_lost = 1;
    if (failed) return failed;
    if (!depth) return INVALID_CONTEXT;
    if (delay) usleep((useconds_t)atoi(delay) * 1000);
    pthread_mutex_lock(&mutex);
    if (event->latest) do_until(event->latest);
    pthread_mutex_unlock(&mutex);
    return OK;
}
CUresult cuEventQuery(struct event *event) { CALLED(""); return event->latest && !event->latest->is_done ? NOT_READY : OK; }

CUresult cuMemHostRegister_v2(uint8_t *start, size_t bytes, unsigned flags) {
    (void)flags;
    CALLED_IN_CONTEXT("");
    if ((uintptr_t)start % 4096 || msync(start, bytes, MS_ASYNC)) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    int is_known = find(registered, start, 1) != NULL;
    if (!is_known) add(&registered, start, bytes);
    pthread_mutex_unlock(&mutex);
    return is_known ? ALREADY_REGISTERED : OK;
}
CUresult cuMemHostUnregister(uint8_t *start) {
    CALLED_IN_CONTEXT("");
    pthread_mutex_lock(&mutex);
    size_t bytes = take_out(&registered, start);
    pthread_mutex_unlock(&mutex);
    if (bytes && msync(start, bytes, MS_ASYNC)) violated("memory was unmapped before it was unregistered");
    return bytes ? OK : NOT_REGISTERED;
}
CUresult cuMemHostAlloc(uint8_t **start, size_t bytes, unsigned flags) {
    CALLED_IN_CONTEXT("");
    if (flags & 4) violated("staging memory that the CPU writes combined");
    bytes = (bytes + 4095) / 4096 * 4096;
    *start = aligned_alloc(4096, bytes);
    pthread_mutex_lock(&mutex);
    add(&registered, *start, bytes);
    pthread_mutex_unlock(&mutex);
    return OK;
}
CUresult cuMemFreeHost(uint8_t *start) {
    CALLED_IN_CONTEXT("");
    pthread_mutex_lock(&mutex);
    size_t bytes = take_out(&registered, start);
    pthread_mutex_unlock(&mutex);
    if (!bytes) return INVALID_VALUE;
    memset(start, 0xDD, bytes);
    free(start);
    return OK;
}

CUresult cuMemAllocAsync(uint64_t *made, size_t bytes, void *handle) {
    (void)handle;
    CALLED_IN_CONTEXT("");
    uint8_t *start = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(start, 0xDD, bytes);
    pthread_mutex_lock(&mutex);
    add(&allocated, start, bytes);
    pthread_mutex_unlock(&mutex);
    *made = (uint64_t)(uintptr_t)start;
    return OK;
}
CUresult cuMemFreeAsync(uint64_t address, void *handle) {
    CALLED_IN_CONTEXT("");
    uint8_t *start = (uint8_t *)(uintptr_t)address;
    pthread_mutex_lock(&mutex);
    size_t bytes = take_out(&allocated, start);
    struct stream *stream = stream_of(handle);
    if (bytes) queue(stream, (struct work){.kind = FREE, .to = start, .bytes = bytes});
    /* As early as the rules allow: a free that comes before the memory's readers shows. */
    while (stream->first) do_one(stream);
    pthread_mutex_unlock(&mutex);
    return bytes ? OK : INVALID_VALUE;
}
CUresult cuMemAlloc_v2(uint64_t *made, size_t bytes) { return cuMemAllocAsync(made, bytes, NULL); }
CUresult cuMemFree_v2(uint64_t address) { return cuMemFreeAsync(address, NULL); }

CUresult cuMemcpyHtoDAsync_v2(uint64_t to, const uint8_t *from, size_t bytes, void *handle) {
    char details[64];
    pthread_mutex_lock(&mutex);
    int is_pinned = find(registered, from, bytes) != NULL;
    pthread_mutex_unlock(&mutex);
    snprintf(details, sizeof details, "%zu %s", bytes, is_pinned ? "pinned" : "pageable");
    CALLED_IN_CONTEXT(details);
    struct work work = {.kind = COPY_IN, .to = (uint8_t *)(uintptr_t)to, .from = from, .bytes = bytes};
    if (!is_pinned) {
        /* The driver takes its own copy before the call returns. */
        work.own = malloc(bytes ? bytes : 1);
        memcpy(work.own, from, bytes);
    }
    pthread_mutex_lock(&mutex);
    queue(stream_of(handle), work);
    pthread_mutex_unlock(&mutex);
    return OK;
}
/* As from a device to the CPU's pinned memory. */
CUresult cuMemcpyDtoHAsync_v2(uint8_t *to, uint64_t from, size_t bytes, void *handle) {
    CALLED_IN_CONTEXT("");
    pthread_mutex_lock(&mutex);
    queue(stream_of(handle), (struct work){.kind = COPY_OUT, .to = to, .from = (const uint8_t *)(uintptr_t)from, .bytes = bytes});
    pthread_mutex_unlock(&mutex);
    return OK;
}
CUresult cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *handle) {
    CALLED_IN_CONTEXT("");
    pthread_mutex_lock(&mutex);
    queue(stream_of(handle), (struct work){.kind = COPY_OVER, .to = (uint8_t *)(uintptr_t)to, .from = (const uint8_t *)(uintptr_t)from, .bytes = bytes});
    pthread_mutex_unlock(&mutex);
    return OK;
}

CUresult cuModuleLoadData(void **module, const void *image) {
    CALLED_IN_CONTEXT("");
    if (!strstr(image, ".version")) return 200; /* no PTX */
    *module = strdup(image);
    return OK;
}
CUresult cuModuleUnload(void *module) { (void)module; CALLED(""); return OK; }
CUresult cuModuleGetFunction(void **function, void *module, const char *name) {
    CALLED_IN_CONTEXT(name);
    int bytes = !strcmp(name, "forebay_mix") ? MIXES : !strcmp(name, "forebay_finish_u32") ? 4 : !strcmp(name, "forebay_finish_u16") ? 2 : !strcmp(name, "forebay_finish_u8");
    if (!bytes || !strstr(module, name)) return NOT_FOUND;
    *function = (void *)(uintptr_t)bytes;
    return OK;
}
CUresult cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes, void *handle, void **parameters, void **extra) {
    (void)shared_bytes, (void)extra;
    CALLED_IN_CONTEXT("");
    if (!grid_x || grid_y != 1 || grid_z != 1 || !block_x || block_x > 1024 || block_y != 1 || block_z != 1) return INVALID_VALUE;
    struct work work = {.kind = KERNEL, .element_bytes = (int)(uintptr_t)function};
    int wide = work.element_bytes == MIXES ? 5 : 4, all = work.element_bytes == MIXES ? 11 : 7;
    for (int place = 0; place < wide; place++) work.numbers[place] = *(uint64_t *)parameters[place];
    for (int place = wide; place < all; place++) work.numbers[place] = *(uint32_t *)parameters[place];
    pthread_mutex_lock(&mutex);
    queue(stream_of(handle), work);
    pthread_mutex_unlock(&mutex);
    return OK;
}

CUresult cuGetErrorName(CUresult result, const char **name) { (void)result; *name = "(stand-in)"; return OK; }
CUresult cuGetErrorString(CUresult result, const char **text) { (void)result; *text = "an error of the stand-in driver"; return OK; }
