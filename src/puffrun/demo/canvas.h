// canvas.h: smooth shapes on a grid of pixels, and a fixed palette to show them with.
//
// A shape is a signed distance in pixels (negative inside); a pixel is covered by 0.5 - distance.
#ifndef CANVAS_H
#define CANVAS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define CANVAS_WIDTH 720
#define CANVAS_HEIGHT 480
#define CANVAS_PIXELS (CANVAS_WIDTH * CANVAS_HEIGHT)

typedef struct { uint8_t r, g, b; } Color;
typedef struct { Color pixels[CANVAS_PIXELS]; } Canvas;

// --- the palette: a few inks, and two mixes of every pair for soft edges -----------------------

enum { GRASS, MEADOW, LEAF, SAND, ASPHALT, WHITE, YELLOW, RED, BLUE, SILVER, NIGHT, CYAN, INKS };

static const Color INK[INKS] = {
    [GRASS] = {118, 176, 92},  [MEADOW] = {129, 186, 101}, [LEAF] = {58, 118, 70},
    [SAND] = {214, 200, 160},  [ASPHALT] = {70, 76, 88},   [WHITE] = {246, 246, 240},
    [YELLOW] = {246, 196, 66}, [RED] = {232, 72, 62},      [BLUE] = {70, 128, 206},
    [SILVER] = {176, 186, 198}, [NIGHT] = {24, 28, 38},    [CYAN] = {86, 214, 222},
};

static inline float canvas_clamp(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

static inline Color canvas_mix(Color a, Color b, float share) {
    return (Color){(uint8_t)(a.r + (b.r - a.r) * share + 0.5f),
                   (uint8_t)(a.g + (b.g - a.g) * share + 0.5f),
                   (uint8_t)(a.b + (b.b - a.b) * share + 0.5f)};
}

// Fills 256 entries, the last of which is never used by canvas_indices.
static inline void canvas_palette(Color palette[256]) {
    static const float SHARES[3] = {0.25f, 0.5f, 0.75f};
    int count = 0;
    memset(palette, 0, 256 * sizeof *palette);
    for (int a = 0; a < INKS; a++) palette[count++] = INK[a];
    for (int a = 0; a < INKS; a++)
        for (int b = a + 1; b < INKS; b++)
            for (int k = 0; k < 3 && count < 255; k++)
                palette[count++] = canvas_mix(INK[a], INK[b], SHARES[k]);
}

static inline uint8_t canvas_nearest(const Color palette[256], Color color) {
    int best = 0, least = 1 << 30;
    for (int i = 0; i < 255; i++) {
        int r = palette[i].r - color.r, g = palette[i].g - color.g, b = palette[i].b - color.b;
        int distance = 3 * r * r + 4 * g * g + 2 * b * b; // eyes see green best
        if (distance < least) least = distance, best = i;
    }
    return (uint8_t)best;
}

// Translates colours to palette entries; `known` remembers 1 + entry for 18-bit colours.
static inline void canvas_indices(const Canvas *canvas, const Color palette[256],
                                  uint16_t known[1 << 18], uint8_t *indices) {
    for (int i = 0; i < CANVAS_PIXELS; i++) {
        Color c = canvas->pixels[i];
        int key = (c.r >> 2) << 12 | (c.g >> 2) << 6 | c.b >> 2;
        if (known[key] == 0) known[key] = 1 + canvas_nearest(palette, c);
        indices[i] = (uint8_t)(known[key] - 1);
    }
}

// --- shapes ----------------------------------------------------------------------------------

static inline void canvas_blend(Canvas *canvas, int x, int y, Color color, float share) {
    if (x < 0 || y < 0 || x >= CANVAS_WIDTH || y >= CANVAS_HEIGHT || share <= 0) return;
    Color *pixel = &canvas->pixels[y * CANVAS_WIDTH + x];
    *pixel = canvas_mix(*pixel, color, canvas_clamp(share));
}

// A rectangle around (x, y), turned by `angle`, with round corners; a disc when all are equal.
typedef struct { float x, y, angle, half_length, half_width, corner; } Box;

static inline float canvas_box_distance(const Box *box, float c, float s, float x, float y) {
    float dx = x - box->x, dy = y - box->y;
    float u = fabsf(dx * c + dy * s) - box->half_length + box->corner;
    float v = fabsf(dy * c - dx * s) - box->half_width + box->corner;
    return hypotf(fmaxf(u, 0), fmaxf(v, 0)) + fminf(fmaxf(u, v), 0) - box->corner;
}

// Fills the box, or its outline when `stroke` (its width) is not 0.
static inline void canvas_box(Canvas *canvas, Box box, float stroke, int ink, float alpha) {
    float reach = hypotf(box.half_length, box.half_width) + stroke + 1;
    float c = cosf(box.angle), s = sinf(box.angle);
    for (int y = (int)(box.y - reach); y <= box.y + reach; y++)
        for (int x = (int)(box.x - reach); x <= box.x + reach; x++) {
            float distance = canvas_box_distance(&box, c, s, x, y);
            if (stroke > 0) distance = fabsf(distance) - stroke / 2;
            canvas_blend(canvas, x, y, INK[ink], alpha * canvas_clamp(0.5f - distance));
        }
}

static inline void canvas_disc(Canvas *canvas, float x, float y, float radius, int ink,
                               float alpha) {
    canvas_box(canvas, (Box){x, y, 0, radius, radius, radius}, 0, ink, alpha);
}

static inline void canvas_ring(Canvas *canvas, float x, float y, float radius, float stroke,
                               int ink, float alpha) {
    canvas_box(canvas, (Box){x, y, 0, radius, radius, radius}, stroke, ink, alpha);
}

// --- letters: 5 x 7, a byte a column, the lowest bit on top ------------------------------------

static const char LETTERS[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ/-.";
static const uint8_t GLYPHS[][5] = {
    {62, 81, 73, 69, 62},    {0, 66, 127, 64, 0},   {66, 97, 81, 73, 70},    {33, 65, 69, 75, 49},
    {24, 20, 18, 127, 16},   {39, 69, 69, 69, 57},  {60, 74, 73, 73, 48},    {1, 113, 9, 5, 3},
    {54, 73, 73, 73, 54},    {6, 73, 73, 41, 30},   {126, 17, 17, 17, 126},  {127, 73, 73, 73, 54},
    {62, 65, 65, 65, 34},    {127, 65, 65, 34, 28}, {127, 73, 73, 73, 65},   {127, 9, 9, 9, 1},
    {62, 65, 73, 73, 122},   {127, 8, 8, 8, 127},   {0, 65, 127, 65, 0},     {32, 64, 65, 63, 1},
    {127, 8, 20, 34, 65},    {127, 64, 64, 64, 64}, {127, 2, 12, 2, 127},    {127, 4, 8, 16, 127},
    {62, 65, 65, 65, 62},    {127, 9, 9, 9, 6},     {62, 65, 81, 33, 94},    {127, 9, 25, 41, 70},
    {70, 73, 73, 73, 49},    {1, 1, 127, 1, 1},     {63, 64, 64, 64, 63},    {31, 32, 64, 32, 31},
    {63, 64, 56, 64, 63},    {99, 20, 8, 20, 99},   {7, 8, 112, 8, 7},       {97, 81, 73, 69, 67},
    {32, 16, 8, 4, 2},       {8, 8, 8, 8, 8},       {0, 96, 96, 0, 0},
};

static inline int canvas_text_width(const char *text, int size) {
    return (int)strlen(text) * 6 * size - size;
}

static inline void canvas_text(Canvas *canvas, int left, int top, int size, int ink,
                               const char *text) {
    for (; *text != '\0'; text++, left += 6 * size) {
        const char *letter = strchr(LETTERS, *text);
        if (letter == NULL) continue; // a space
        const uint8_t *glyph = GLYPHS[letter - LETTERS];
        for (int y = 0; y < 7 * size; y++)
            for (int x = 0; x < 5 * size; x++)
                if (glyph[x / size] >> (y / size) & 1)
                    canvas_blend(canvas, left + x, top + y, INK[ink], 1);
    }
}

#endif
