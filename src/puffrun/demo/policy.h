// policy.h: the trained policy, as policy.py exports it. Linear layers with tanh between them.
#ifndef POLICY_H
#define POLICY_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLICY_MAX_LAYERS 8
#define POLICY_MAX_WIDTH 1024

typedef struct { uint32_t outputs, inputs; float *weights, *biases; } PolicyLayer;
typedef struct { uint32_t count; PolicyLayer layers[POLICY_MAX_LAYERS]; } Policy;

static inline float *policy_read_floats(FILE *file, size_t count) {
    float *values = malloc(count * sizeof *values);
    if (values != NULL && fread(values, sizeof *values, count, file) == count) return values;
    free(values);
    return NULL;
}

static inline int policy_read_layer(FILE *file, PolicyLayer *layer) {
    if (fread(&layer->outputs, 4, 1, file) != 1 || fread(&layer->inputs, 4, 1, file) != 1) return 0;
    if (layer->outputs > POLICY_MAX_WIDTH || layer->inputs > POLICY_MAX_WIDTH) return 0;
    layer->weights = policy_read_floats(file, (size_t)layer->outputs * layer->inputs);
    layer->biases = policy_read_floats(file, layer->outputs);
    return layer->weights != NULL && layer->biases != NULL;
}

static inline void policy_free(Policy *policy) {
    for (uint32_t i = 0; i < policy->count; i++) {
        free(policy->layers[i].weights);
        free(policy->layers[i].biases);
    }
}

static inline int policy_read(FILE *file, Policy *policy, uint32_t inputs, uint32_t outputs) {
    char magic[8];
    if (fread(magic, 8, 1, file) != 1 || memcmp(magic, "DRIVEMLP", 8) != 0) return 0;
    if (fread(&policy->count, 4, 1, file) != 1) return 0;
    if (policy->count < 1 || policy->count > POLICY_MAX_LAYERS) return policy->count = 0;
    uint32_t width = inputs;
    for (uint32_t i = 0; i < policy->count; i++) {
        PolicyLayer *layer = &policy->layers[i];
        if (!policy_read_layer(file, layer) || layer->inputs != width) return 0;
        width = layer->outputs;
    }
    return width == outputs;
}

// Returns 0 when the file is not a policy of this shape; the caller frees it either way.
static inline int policy_load(const char *path, Policy *policy, uint32_t inputs, uint32_t outputs) {
    memset(policy, 0, sizeof *policy);
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    int whole = policy_read(file, policy, inputs, outputs) && fgetc(file) == EOF;
    fclose(file);
    return whole;
}

static inline void policy_logits(const Policy *policy, const float *observations, float *logits) {
    float a[POLICY_MAX_WIDTH], b[POLICY_MAX_WIDTH];
    memcpy(a, observations, policy->layers[0].inputs * sizeof *a);
    for (uint32_t l = 0; l < policy->count; l++) {
        const PolicyLayer *layer = &policy->layers[l];
        for (uint32_t o = 0; o < layer->outputs; o++) {
            float sum = layer->biases[o];
            const float *row = layer->weights + (size_t)o * layer->inputs;
            for (uint32_t i = 0; i < layer->inputs; i++) sum += row[i] * a[i];
            b[o] = l + 1 < policy->count ? tanhf(sum) : sum;
        }
        memcpy(a, b, layer->outputs * sizeof *a);
    }
    memcpy(logits, a, policy->layers[policy->count - 1].outputs * sizeof *a);
}

static inline int policy_choose(const float *logits, int count) {
    int best = 0;
    for (int i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

#endif
