/* What the kernels of client-lib/src/cuda do, in C, for stand_in_driver.c. Numbers are a kernel's parameters. */

/* The kernel of finish.ptx: input, output, table, pixels, pixels a row, channels, channels first. */
static void finish(const uint64_t *numbers, size_t size) {
    const uint8_t *input = (const uint8_t *)numbers[0], *table = (const uint8_t *)numbers[2];
    uint8_t *output = (uint8_t *)numbers[1];
    uint64_t pixels = numbers[3], row_pixels = numbers[4], channels = numbers[5];
    for (uint64_t pixel = 0; pixel < pixels; pixel++)
        for (uint64_t channel = 0; channel < channels; channel++) {
            uint64_t row = pixel / row_pixels, place = pixel % row_pixels;
            uint64_t at = numbers[6] ? (row * channels + channel) * row_pixels + place : pixel * channels + channel;
            uint64_t entry = channel * 256 + input[pixel * channels + channel];
            memcpy(output + at * size, table + entry * size, size);
        }
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A finite value as float16 (8) or bfloat16 (9), to nearest, ties to even. */
static uint16_t narrow(float value, uint64_t dtype) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (dtype == 9) return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    /* Below the least normal one a sum with 0.5 rounds: its last place is the least float16. */
    if (size < 0x38800000) return (uint16_t)(sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f)));
    return (uint16_t)(sign | (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13);
}

/* The value that the output's type has for one: 0 uint8, 8 float16, 9 bfloat16, else float32. */
static float rounded(float value, uint64_t dtype) {
    if (dtype == 0) return value + 8388608.0f - 8388608.0f; /* to a whole number, ties to even */
    if (dtype == 9) return float_of((uint32_t)narrow(value, dtype) << 16);
    if (dtype != 8) return value;
    uint32_t bits = narrow(value, dtype), size = bits & 0x7fff;
    float wide = size < 0x400 ? (float)size * 0x1p-24f : float_of((size + (size < 0x7c00 ? 0x1c000 : 0x38000)) << 13);
    return bits & 0x8000 ? -wide : wide;
}

/* The kernel of mix.ptx: input, output, table, pixels, mixes, pixels a row, channels, channels first, width, type, mixes. */
static void finish_and_mix(const uint64_t *numbers) {
    const uint8_t *input = (const uint8_t *)numbers[0];
    const float *table = (const float *)numbers[2];
    uint64_t pixels = numbers[3], row_pixels = numbers[5], channels = numbers[6], dtype = numbers[9];
    for (uint64_t at = 0; at < pixels * channels; at++) {
        uint64_t pixel = at / channels, channel = at % channels, row = pixel / row_pixels, place = pixel % row_pixels;
        uint64_t partner = pixels / row_pixels - 1 - row, x = place % numbers[8], y = place / numbers[8];
        float own = table[channel * 256 + input[at]];
        float other = table[channel * 256 + input[(partner * row_pixels + place) * channels + channel]];
        const uint32_t *mix = (const uint32_t *)numbers[4];
        for (uint64_t number = 0; partner != row && number < numbers[10]; number++, mix += 8) {
            float share = float_of(mix[1]), rest = 1.0f - share, before = own;
            int is_within = x >= mix[2] && x < mix[3] && y >= mix[4] && y < mix[5];
            if (mix[0] == 1) {
                own = rounded(own * share + other * rest, dtype);
                other = rounded(other * share + before * rest, dtype);
            } else if (mix[0] == 2 && is_within) {
                own = other;
                other = before;
            }
        }
        uint64_t to = numbers[7] ? (row * channels + channel) * row_pixels + place : at;
        if (dtype == 0) ((uint8_t *)numbers[1])[to] = (uint8_t)own;
        else if (dtype == 8 || dtype == 9) ((uint16_t *)numbers[1])[to] = narrow(own, dtype);
        else ((float *)numbers[1])[to] = own;
    }
}
