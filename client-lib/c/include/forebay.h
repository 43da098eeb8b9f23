/*
 * forebay.h: finished training batches from a Forebay daemon, in C99 and C++.
 *
 *     forebay_options options = FOREBAY_OPTIONS_INIT;
 *     forebay_loader *loader;
 *     forebay_batch *batch;
 *     int status;
 *
 *     options.target = "train.toml";
 *     if (forebay_loader_open(&options, &loader) != FOREBAY_OK)
 *         die(forebay_last_error());
 *     while ((status = forebay_loader_next(loader, &batch)) == FOREBAY_OK) {
 *         forebay_tensor image = FOREBAY_TENSOR_INIT;
 *         forebay_batch_find_tensor(batch, "image", &image);
 *         train(image.data, image.shape);
 *         forebay_batch_release(batch);
 *     }
 *     if (status != FOREBAY_END)
 *         die(forebay_last_error());
 *     forebay_loader_close(loader);
 *
 * Results. Every function that can fail returns an int: FOREBAY_OK or another value of 0 or more on success, a negative
 * FOREBAY_ERROR_ on failure. forebay_last_error() then has a message with values, location and remedy. A failed call writes
 * no results, except that a requested handle or text is set to NULL. No panic unwinds out of this library: an internal error
 * is FOREBAY_ERROR_INTERNAL. Running out of heap memory aborts the process.
 *
 * Ownership. The caller must release a loader (forebay_loader_close), a batch (forebay_batch_release) and a text
 * (forebay_text_free), each once; releasing NULL is a no-op. Handles are looked up and never dereferenced: a released handle
 * is FOREBAY_ERROR_ARGUMENT, not a crash. Other pointers must be NULL, which is an error for a required argument, or valid as
 * documented here. Input strings are UTF-8, end with a null byte and are not kept.
 *
 * Batches. A batch is a lease of a slot of the ring; its tensors are in the slot, without a copy. It is valid until its last
 * handle is released, also after the loader is closed and after the daemon has died. Slots may be returned in any order;
 * while more than `hold` batches are held, requesting the next one is FOREBAY_ERROR_HOLD_LIMIT. A batch is held as a whole,
 * small tensors too: copy what is kept, such as labels, and release the batch. The slot may be written to: no other process
 * reads it.
 *
 * Threads. Every function may be called from every thread. Calls on one loader are serialised, so a thread that waits in
 * forebay_loader_next blocks other calls on that loader; forebay_loader_close ends its wait (FOREBAY_ERROR_CLOSED). Calls on
 * batches never wait for a loader. No function may be called from a signal handler.
 *
 * Forks. Loaders, batches and texts belong to the process that created them. In a forked child every call on them is
 * FOREBAY_ERROR_FORKED and has no effect, and the memory of batches is not mapped: an access crashes the child. The child
 * may open its own loaders.
 *
 * Sizes. Structs begin with `size`, which the FOREBAY_..._INIT constants set; it tells whether header and library match.
 */
#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version and errors ---------------------------------------------------------------------------------------------- */

/* The release of this header; forebay_version() returns the library's. Libraries of one major version share the soname,
 * libforebay.so.MAJOR. */
#define FOREBAY_VERSION_MAJOR 0
#define FOREBAY_VERSION_MINOR 3
#define FOREBAY_VERSION_PATCH 0

/* "MAJOR.MINOR.PATCH" of the library. Valid forever. */
const char *forebay_version(void);

typedef enum forebay_status {
    FOREBAY_OK = 0,
    FOREBAY_END = 1,                     /* the epoch has ended; no batch */
    FOREBAY_WAITING = 2,                 /* nothing is ready yet; no batch */
    FOREBAY_ERROR_ARGUMENT = -1,         /* an argument is NULL, a released handle, or invalid */
    FOREBAY_ERROR_CONFIG = -2,           /* an error in the configuration, the target, the rank or the request */
    FOREBAY_ERROR_BAD_SAMPLE = -3,       /* a bad sample with on_bad_sample = "fail", or more of them than allowed */
    FOREBAY_ERROR_STORAGE = -4,          /* reading failed after all retries, for a possibly transient reason */
    FOREBAY_ERROR_MEMORY = -5,           /* the machine lacks memory, descriptors or threads for the session */
    FOREBAY_ERROR_TAKEN = -6,            /* another client holds this stream, rank and world size */
    FOREBAY_ERROR_VERSION = -7,          /* daemon and library are of different versions */
    FOREBAY_ERROR_DAEMON_LOST = -8,      /* the daemon is gone, or none answers at the socket */
    FOREBAY_ERROR_TIMEOUT = -9,          /* no progress for `timeout_seconds` */
    FOREBAY_ERROR_HOLD_LIMIT = -10,      /* more batches are held than the ring allows: release some */
    FOREBAY_ERROR_STATE_MISMATCH = -11,  /* a saved state belongs to another stream; each difference is named */
    FOREBAY_ERROR_EPOCHS_FINISHED = -12, /* all configured epochs are finished */
    FOREBAY_ERROR_FORKED = -13,          /* the handle belongs to the parent of this process */
    FOREBAY_ERROR_INTERRUPTED = -14,     /* the `interrupt` callback ended a wait; the loader stays usable */
    FOREBAY_ERROR_CLOSED = -15,          /* another thread closed the loader meanwhile */
    FOREBAY_ERROR_NO_SUCH_TENSOR = -16,  /* the batch has no tensor of this name or number */
    FOREBAY_ERROR_PROTOCOL = -17,        /* the daemon sent invalid data: a bug in Forebay */
    FOREBAY_ERROR_INTERNAL = -18,        /* an internal error of this library: please report it */
    FOREBAY_ERROR_STAGE = -19            /* the user's own Python stage raised an exception, or cannot be called */
} forebay_status;

/* The message of this thread's last failed call; "" before the first. The library owns it. It is valid until a later
 * call of this thread fails or the thread ends; a call that succeeds does not change it. */
const char *forebay_last_error(void);

/* A status in a word, such as "daemon-lost"; "unknown" for a number that is not a status. Valid forever. */
const char *forebay_status_name(int status);

/* Frees a text that a function of this header returned. */
int forebay_text_free(char *text);

/* ---- Opening a loader ------------------------------------------------------------------------------------------------ */

typedef struct forebay_loader forebay_loader;
typedef struct forebay_batch forebay_batch;

/* Overrides a key of the configuration: "batch.size" and "128", "dataset.path" and "\"/data\"". */
typedef struct forebay_override {
    const char *key;  /* with dots */
    const char *json; /* its value as JSON text */
} forebay_override;

/* The options of a loader. A field that is NULL or 0 has the documented default. */
typedef struct forebay_options {
    size_t size; /* set by FOREBAY_OPTIONS_INIT */

    /* The target. A path that ends in ".toml" or names a plain file: a configuration, for which a private daemon is started
     * that exits with the loader. A path of a socket, or any other path with a '/': a running daemon. Any other word: a
     * stream of the daemon whose socket is in FOREBAY_SOCKET, which `forebay run` sets. NULL: `json` if it is given, else
     * `stream` of that daemon. */
    const char *target;
    const char *stream; /* the stream of a running daemon; NULL: its first, or the one that `target` names */
    const char *json;   /* a configuration as JSON text, instead of `target`: a private daemon, as for a file */
    const char *folder; /* where relative paths in `json` start; NULL: the working directory */
    const forebay_override *overrides; /* for a private daemon; NULL: none */
    size_t override_count;

    const char *state; /* a saved state to resume from (forebay_loader_state); NULL: epoch 0, sample 0 */
    int force;         /* not 0: accept a state of another stream */

    /* This process's rank, counted from 0, and the number of ranks. `world_size` 0: the launcher's (docs/guide/ranks.md,
     * "Several ranks", lists them), else rank 0 of 1. */
    uint32_t rank;
    uint32_t world_size;

    double timeout_seconds; /* the maximum wait without any progress; 0: 300 */
    const char *program;    /* the private daemon's program, tried after the variable FOREBAY_PROGRAM and before the folder
                               of this executable and PATH */

    /* Called about every 50 ms by the thread that waits in a call on the loader, also while it is opened. A result other
     * than 0 ends the wait with FOREBAY_ERROR_INTERRUPTED. It must return (no C++ exception, no longjmp) and must not use
     * the loader. */
    int (*interrupt)(void *context);
    void *interrupt_context; /* passed to `interrupt` */

    /* A name that separates jobs, "" for one: loaders of this user and host with the same configuration and name share a
     * daemon, which ends after the last of them. NULL: a private daemon. */
    const char *shared;
    /* This trainer's name among several that share samples (docs/guide/trainers.md); implies `shared` for a configuration.
     * NULL: none. */
    const char *trainer;
    uint32_t batch_size; /* samples in a batch of this loader; 0: as configured */
} forebay_options;

#define FOREBAY_OPTIONS_INIT {sizeof(forebay_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Attaches; starts a private daemon first if the target is a configuration. *loader is a handle to be closed. */
int forebay_loader_open(const forebay_options *options, forebay_loader **loader);

/* Ends the session and a private daemon. Another thread's call that waits on the loader ends (FOREBAY_ERROR_CLOSED)
 * before this one returns. Batches stay valid. */
int forebay_loader_close(forebay_loader *loader);

/* ---- Taking batches -------------------------------------------------------------------------------------------------- */

/* The next batch: FOREBAY_OK and *batch, to be released; FOREBAY_END after the epoch's last. The call after that begins the
 * next epoch, or is FOREBAY_ERROR_EPOCHS_FINISHED after the last configured one. Waits; makes no system call when the batch
 * is ready. */
int forebay_loader_next(forebay_loader *loader, forebay_batch **batch);

/* As forebay_loader_next, but FOREBAY_WAITING instead of a wait, also while another thread is in a call on the loader.
 * It never begins an epoch: until forebay_loader_begin_epoch is called, it returns FOREBAY_END. */
int forebay_loader_try_next(forebay_loader *loader, forebay_batch **batch);

/* After FOREBAY_WAITING: waits up to 50 ms, less if there is an event. FOREBAY_ERROR_TIMEOUT without progress. */
int forebay_loader_wait(forebay_loader *loader);

/* Begins the next epoch: that of the opening, seek or loaded state, else the one after the last epoch. The remaining batches
 * of an unfinished epoch are given up, and counted; with batches by length this waits for the daemon's answer. */
int forebay_loader_begin_epoch(forebay_loader *loader);

/* Seeks to an epoch's start, unless the position is in that epoch already. */
int forebay_loader_set_epoch(forebay_loader *loader, uint64_t epoch);

/* Seeks to a position: an epoch, and the samples of it that all ranks together have consumed. A position that the stream
 * does not have (FOREBAY_ERROR_CONFIG) ends the session. */
int forebay_loader_seek(forebay_loader *loader, uint64_t epoch, uint64_t samples);

/* ---- State and statistics -------------------------------------------------------------------------------------------- */

/* The stream's state as one line of JSON, the same on every rank and valid for any number of ranks. It counts all
 * batches returned so far, except the last `held_back` ones: for programs that read ahead. FOREBAY_ERROR_CONFIG when
 * `held_back` is above 1024, or above the number of batches returned since the last seek. *json is to be freed. */
int forebay_loader_state(forebay_loader *loader, size_t held_back, char **json);

/* Resumes from a saved state. FOREBAY_ERROR_STATE_MISMATCH when it belongs to another stream, unless `force` is not 0; the
 * loader is unchanged then. */
int forebay_loader_load_state(forebay_loader *loader, const char *json, int force);

/* The daemon's statistics as JSON, as `forebay stats --json` prints them, and this loader's under "client". *json is a text
 * to be freed. */
int forebay_loader_stats(forebay_loader *loader, char **json);

typedef struct forebay_loader_info {
    size_t size;                /* set by FOREBAY_LOADER_INFO_INIT */
    uint64_t batches_per_epoch; /* of this rank, in a full epoch */
    uint64_t samples_per_epoch; /* over all ranks, those that batch.last leaves out included */
    uint64_t epochs;            /* configured; 0: endless */
    uint64_t held;              /* batches that this process holds now */
    uint64_t given_up;          /* batches given up by leaving epochs early */
    uint64_t restarts;          /* how often a dead daemon was replaced */
    uint32_t batch_size;        /* the maximum number of rows in a batch */
    uint32_t tensor_count;      /* of each batch */
    uint32_t slots;             /* of the ring */
    uint32_t hold;              /* batches that may be held while the next one is requested */
    uint32_t rank;
    uint32_t world_size;
    uint32_t daemon_process; /* the private daemon's process id, which changes with a restart; 0: not private */
} forebay_loader_info;

#define FOREBAY_LOADER_INFO_INIT {sizeof(forebay_loader_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Fills *info. */
int forebay_loader_get_info(forebay_loader *loader, forebay_loader_info *info);

/* ---- Batches --------------------------------------------------------------------------------------------------------- */

typedef struct forebay_batch_info {
    size_t size;            /* set by FOREBAY_BATCH_INFO_INIT */
    uint64_t rows;          /* samples in the batch, padding included */
    uint64_t number;        /* in the session, counted from 0 across seeks and epochs */
    uint64_t epoch;         /* the batch's epoch */
    uint64_t epoch_after;   /* the epoch of the stream's position after the batch */
    uint64_t samples_after; /* the samples of epoch_after that all ranks together have consumed at that position */
    uint64_t payload_bytes; /* the bytes of the slot that hold data */
    uint32_t tensor_count;
    int is_last_of_epoch; /* for this rank: 0 or 1 */
} forebay_batch_info;

#define FOREBAY_BATCH_INFO_INIT {sizeof(forebay_batch_info), 0, 0, 0, 0, 0, 0, 0, 0}

/* Fills *info. */
int forebay_batch_get_info(const forebay_batch *batch, forebay_batch_info *info);

/* A second handle to the same slot, to be released as well; releasing the last handle returns the slot. */
int forebay_batch_retain(const forebay_batch *batch, forebay_batch **second);

/* Releases a handle, on any thread, also after the loader was closed. */
int forebay_batch_release(forebay_batch *batch);

/* ---- Tensors --------------------------------------------------------------------------------------------------------- */

/* The type of elements, field by field DLPack's DLDataType. */
typedef struct forebay_dtype {
    uint8_t code;   /* forebay_dtype_code */
    uint8_t bits;   /* of one element: 8, 16, 32 or 64 */
    uint16_t lanes; /* 1 */
} forebay_dtype;

/* The values of DLPack's DLDataTypeCode that occur. */
typedef enum forebay_dtype_code {
    FOREBAY_DTYPE_INT = 0,
    FOREBAY_DTYPE_UINT = 1,
    FOREBAY_DTYPE_FLOAT = 2,    /* IEEE 754: half, single or double */
    FOREBAY_DTYPE_BFLOAT = 4,   /* the upper half of a single */
    FOREBAY_DTYPE_BOOL = 6      /* a byte of 0 or 1 */
} forebay_dtype_code;

#define FOREBAY_MAX_RANK 8        /* dimensions of a tensor, the batch's own included */
#define FOREBAY_MAX_NAME_BYTES 64 /* of a tensor's name, without the null byte */

/* One tensor of a batch. `data`, `offsets` and `lengths` are valid as long as the batch; the rest is the caller's copy.
 *
 * A dense tensor is contiguous, in row-major order: shape[0] is the batch's rows. With `batch.buckets` the other dimensions
 * differ between batches.
 * A ragged tensor, whose rows differ in their first dimension, has rank 1, and shape[0] elements in the region of its rows,
 * gaps included. Row i begins offsets[i] elements after `data` and has lengths[i] elements; both arrays have an entry for
 * each row of the batch. The other dimensions of a row are the first `row_rank` of row_shape: none for a list of numbers,
 * 4 for boxes; lengths[i] divided by their product is the first dimension. */
typedef struct forebay_tensor {
    size_t size;                       /* set by FOREBAY_TENSOR_INIT */
    void *data;                        /* aligned to 256 bytes */
    uint64_t bytes;                    /* of the whole tensor, gaps included */
    int64_t shape[FOREBAY_MAX_RANK];   /* in memory order, the batch's rows first; 0 beyond `rank` */
    int64_t strides[FOREBAY_MAX_RANK]; /* in elements; 0 beyond `rank` */
    const uint64_t *offsets;           /* in elements; NULL: the tensor is dense */
    const uint64_t *lengths;           /* in elements; NULL: the tensor is dense */
    forebay_dtype dtype;
    int32_t rank;
    int32_t row_rank;                    /* of row_shape; 0 for a dense tensor */
    int64_t row_shape[FOREBAY_MAX_RANK]; /* of a ragged tensor's rows, without the first; 0 beyond `row_rank` */
    int channels_last; /* 1: rows are height, width, channels, and [output] says NHWC */
    char name[FOREBAY_MAX_NAME_BYTES + 1];
} forebay_tensor;

#define FOREBAY_TENSOR_INIT {sizeof(forebay_tensor), 0, 0, {0}, {0}, 0, 0, {0, 0, 0}, 0, 0, {0}, 0, {0}}

/* Fills *tensor with the tensor at an index below tensor_count. Names, types and indices are the same for all batches of a
 * loader. */
int forebay_batch_get_tensor(const forebay_batch *batch, uint32_t index, forebay_tensor *tensor);

/* Fills *tensor with the tensor of a name. */
int forebay_batch_find_tensor(const forebay_batch *batch, const char *name, forebay_tensor *tensor);

/* The rows of a ragged tensor as one array, which `batch.pad` asks for: each is padded to the longest of the batch, rounded up
 * to `batch.multiple_of`, with `output.FIELD.pad`. Call it with NULL for `data` and `lengths` first: it fills in the rest. */
typedef struct forebay_padded {
    size_t size;                     /* set by FOREBAY_PADDED_INIT */
    void *data;                      /* in: where the array is written, row-major and contiguous; or NULL */
    int64_t *lengths;                /* in: where the first dimension of each row, without padding, is written; or NULL */
    uint64_t bytes;                  /* in: the room at `data`; out: the size of the array */
    int64_t shape[FOREBAY_MAX_RANK]; /* out: the rows, the longest of them, their other dimensions; 0 beyond `rank` */
    int32_t rank;                    /* out */
} forebay_padded;

#define FOREBAY_PADDED_INIT {sizeof(forebay_padded), 0, 0, 0, {0}, 0}

/* Fills *padded, and what its pointers name, with the tensor of a name. FOREBAY_ERROR_NO_SUCH_TENSOR: it is not padded.
 * FOREBAY_ERROR_ARGUMENT: `bytes` is less than the size of the array; nothing is written at `data`. */
int forebay_batch_pad(const forebay_batch *batch, const char *name, forebay_padded *padded);

#ifdef __cplusplus
}
#endif

#endif
