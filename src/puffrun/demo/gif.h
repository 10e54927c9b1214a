// gif.h: a small writer of animated GIFs (GIF89a). Each frame holds only what changed.
#ifndef GIF_H
#define GIF_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIF_COLORS 256
#define GIF_CLEAR 255       // the palette entry that means "as in the last frame"
#define GIF_MAX_CODES 4096
#define GIF_HASH_SIZE 16384 // a power of two, four times the codes

typedef struct {
    FILE *file;
    int width, height;
    uint8_t *shown;         // what the viewer sees: one palette index a pixel
    uint8_t *changed;       // the pixels of the frame that is being written
    uint8_t block[255];     // data goes out in blocks of at most 255 bytes
    int block_size, bit_count;
    uint32_t bits;
    uint32_t hash_keys[GIF_HASH_SIZE];
    uint16_t hash_codes[GIF_HASH_SIZE];
} Gif;

static inline void gif_put16(Gif *gif, int value) {
    fputc(value & 255, gif->file);
    fputc(value >> 8 & 255, gif->file);
}

static inline void gif_close(Gif *gif) {
    free(gif->shown);
    free(gif->changed);
    gif->shown = gif->changed = NULL;
}

// palette: 256 x RGB. Returns 0 when there is no memory. The file stays the caller's.
static inline int gif_open(Gif *gif, FILE *file, int width, int height, const uint8_t *palette) {
    memset(gif, 0, sizeof *gif);
    gif->file = file, gif->width = width, gif->height = height;
    gif->shown = malloc((size_t)width * height);
    gif->changed = malloc((size_t)width * height);
    if (gif->shown == NULL || gif->changed == NULL) {
        gif_close(gif);
        return 0;
    }
    memset(gif->shown, GIF_CLEAR, (size_t)width * height);
    fputs("GIF89a", file);
    gif_put16(gif, width);
    gif_put16(gif, height);
    fwrite("\xf7\0\0", 1, 3, file); // 256 colours of 8 bits, background 0, square pixels
    fwrite(palette, 3, GIF_COLORS, file);
    fwrite("\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0", 1, 19, file); // repeat for ever
    return 1;
}

static inline void gif_flush_block(Gif *gif) {
    if (gif->block_size == 0) return;
    fputc(gif->block_size, gif->file);
    fwrite(gif->block, 1, gif->block_size, gif->file);
    gif->block_size = 0;
}

static inline void gif_put_code(Gif *gif, int code, int size) {
    gif->bits |= (uint32_t)code << gif->bit_count;
    for (gif->bit_count += size; gif->bit_count >= 8; gif->bit_count -= 8, gif->bits >>= 8) {
        gif->block[gif->block_size++] = gif->bits & 255;
        if (gif->block_size == 255) gif_flush_block(gif);
    }
}

// The slot of a string (a known code and one more pixel) in the table: its own, or a free one.
static inline uint32_t gif_slot(const Gif *gif, uint32_t key) {
    uint32_t slot = key * 2654435761u >> 18;
    while (gif->hash_keys[slot] != 0 && gif->hash_keys[slot] != key)
        slot = (slot + 1) & (GIF_HASH_SIZE - 1);
    return slot;
}

// LZW as GIF has it: 8-bit symbols, codes of 9 to 12 bits, 256 empties the table, 257 ends.
static inline void gif_compress(Gif *gif, const uint8_t *pixels, int count) {
    int size = 9, next = 258, code = pixels[0];
    memset(gif->hash_keys, 0, sizeof gif->hash_keys);
    fputc(8, gif->file);
    gif_put_code(gif, 256, size);
    for (int i = 1; i < count; i++) {
        uint32_t key = ((uint32_t)code << 8 | pixels[i]) + 1;
        uint32_t slot = gif_slot(gif, key);
        if (gif->hash_keys[slot] == key) {
            code = gif->hash_codes[slot];
            continue;
        }
        gif_put_code(gif, code, size);
        code = pixels[i];
        if (next == GIF_MAX_CODES) {
            gif_put_code(gif, 256, size);
            memset(gif->hash_keys, 0, sizeof gif->hash_keys);
            size = 9, next = 258;
            continue;
        }
        gif->hash_keys[slot] = key;
        gif->hash_codes[slot] = next;
        if (next++ == 1 << size) size++;
    }
    gif_put_code(gif, code, size);
    gif_put_code(gif, 257, size);
    gif_put_code(gif, 0, 7); // pad to a byte
    gif->bits = gif->bit_count = 0;
    gif_flush_block(gif);
    fputc(0, gif->file);
}

// Adds a frame of width x height palette indices (0 to 254), shown for `delay` hundredths of a second.
static inline void gif_frame(Gif *gif, const uint8_t *pixels, int delay) {
    int left = gif->width, top = gif->height, right = -1, bottom = -1, count = 0;
    for (int y = 0; y < gif->height; y++)
        for (int x = 0; x < gif->width; x++) {
            if (pixels[y * gif->width + x] == gif->shown[y * gif->width + x]) continue;
            if (x < left) left = x;
            if (x > right) right = x;
            if (y < top) top = y;
            bottom = y;
        }
    if (right < 0) left = top = right = bottom = 0; // nothing changed: one pixel carries the delay
    for (int y = top; y <= bottom; y++)
        for (int x = left; x <= right; x++) {
            int i = y * gif->width + x;
            gif->changed[count++] = pixels[i] == gif->shown[i] ? GIF_CLEAR : pixels[i];
            gif->shown[i] = pixels[i];
        }
    fwrite("\x21\xf9\x04\x05", 1, 4, gif->file); // leave in place, transparent entry
    gif_put16(gif, delay);
    fputc(GIF_CLEAR, gif->file);
    fwrite("\0\x2c", 1, 2, gif->file);
    gif_put16(gif, left);
    gif_put16(gif, top);
    gif_put16(gif, right - left + 1);
    gif_put16(gif, bottom - top + 1);
    fputc(0, gif->file);
    gif_compress(gif, gif->changed, count);
}

// Ends the file. Returns 0 when something could not be written.
static inline int gif_finish(Gif *gif) {
    fputc(0x3b, gif->file);
    gif_close(gif);
    return fflush(gif->file) == 0 && !ferror(gif->file);
}

#endif
