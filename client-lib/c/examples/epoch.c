/*
 * Reads one epoch and prints each row's id and label, and at the end a checksum over all bytes.
 *
 *     cc -std=c99 epoch.c $(pkg-config --cflags --libs forebay) -o epoch
 *     ./epoch train.toml
 *
 * The target is a configuration, a daemon's socket or a stream's name. Without labels it prints only ids.
 */
#include <forebay.h>

#include <inttypes.h>
#include <stdio.h>

/* Prints the error and exits. */
static int fail(const char *what, int status)
{
    fprintf(stderr, "%s: %s: %s\n", what, forebay_status_name(status), forebay_last_error());
    return 1;
}

/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t add_to_checksum(uint64_t checksum, const void *data, uint64_t bytes)
{
    const unsigned char *byte = (const unsigned char *)data;
    uint64_t place;
    for (place = 0; place < bytes; ++place)
        checksum = (checksum ^ byte[place]) * UINT64_C(1099511628211);
    return checksum;
}

/* A ragged tensor has gaps with undefined bytes between its rows. */
static uint64_t add_tensor(uint64_t checksum, const forebay_tensor *tensor, uint64_t rows)
{
    const unsigned char *data = (const unsigned char *)tensor->data;
    uint64_t element = tensor->dtype.bits / 8u;
    uint64_t row;
    if (tensor->offsets == NULL)
        return add_to_checksum(checksum, data, tensor->bytes);
    for (row = 0; row < rows; ++row)
        checksum = add_to_checksum(checksum, data + tensor->offsets[row] * element, tensor->lengths[row] * element);
    return checksum;
}

/* Prints a batch's rows and adds its bytes to the checksum. */
static int read_batch(const forebay_batch *batch, uint64_t *checksum)
{
    forebay_batch_info info = FOREBAY_BATCH_INFO_INIT;
    forebay_tensor index = FOREBAY_TENSOR_INIT;
    forebay_tensor label = FOREBAY_TENSOR_INIT;
    const int64_t *ids, *labels = NULL;
    uint64_t row;
    uint32_t place;
    int status;

    if ((status = forebay_batch_get_info(batch, &info)) != FOREBAY_OK)
        return status;
    if ((status = forebay_batch_find_tensor(batch, "index", &index)) != FOREBAY_OK)
        return status;
    ids = (const int64_t *)index.data;
    if (forebay_batch_find_tensor(batch, "label", &label) == FOREBAY_OK && label.dtype.code == FOREBAY_DTYPE_INT &&
        label.dtype.bits == 64)
        labels = (const int64_t *)label.data;
    for (row = 0; row < info.rows; ++row) {
        if (labels != NULL)
            printf("%" PRId64 " %" PRId64 "\n", ids[row], labels[row]);
        else
            printf("%" PRId64 "\n", ids[row]);
    }
    for (place = 0; place < info.tensor_count; ++place) {
        forebay_tensor tensor = FOREBAY_TENSOR_INIT;
        if ((status = forebay_batch_get_tensor(batch, place, &tensor)) != FOREBAY_OK)
            return status;
        *checksum = add_tensor(*checksum, &tensor, info.rows);
    }
    return FOREBAY_OK;
}

int main(int count, char **arguments)
{
    forebay_options options = FOREBAY_OPTIONS_INIT;
    forebay_loader *loader;
    forebay_batch *batch;
    uint64_t checksum = UINT64_C(14695981039346656037);
    int status;

    if (count != 2) {
        fprintf(stderr, "usage: %s TARGET\n", arguments[0]);
        return 2;
    }
    options.target = arguments[1];
    if ((status = forebay_loader_open(&options, &loader)) != FOREBAY_OK)
        return fail(arguments[1], status);
    while ((status = forebay_loader_next(loader, &batch)) == FOREBAY_OK) {
        status = read_batch(batch, &checksum);
        forebay_batch_release(batch);
        if (status != FOREBAY_OK)
            return fail("reading a batch", status);
    }
    if (status != FOREBAY_END)
        return fail("the next batch", status);
    printf("checksum %016" PRIx64 "\n", checksum);
    forebay_loader_close(loader);
    return 0;
}
