// drive_env.c: many driving worlds stepped together, for ctypes. Buffers are flat and the caller's.
//
//   cc -O2 -shared -fPIC drive_env.c -o libdrive.so -lm
#include <stdlib.h>

#include "drive.h"

typedef struct {
    int count;
    uint64_t seed;
    uint64_t *episodes; // how many each world has begun
    Drive *worlds;
} DriveEnvs;

int drive_envs_observations(void) { return DRIVE_OBSERVATIONS; }
int drive_envs_actions(void) { return DRIVE_ACTIONS; }

static void begin_episode(DriveEnvs *envs, int i) {
    drive_start(&envs->worlds[i], drive_scenario(envs->seed, (uint64_t)i, envs->episodes[i]++));
}

void drive_envs_close(DriveEnvs *envs) {
    if (envs == NULL) return;
    free(envs->episodes);
    free(envs->worlds);
    free(envs);
}

// NULL when there is no memory. observations: count x DRIVE_OBSERVATIONS.
DriveEnvs *drive_envs_make(int count, uint64_t seed, float *observations) {
    DriveEnvs *envs = calloc(1, sizeof *envs);
    if (envs == NULL) return NULL;
    envs->count = count;
    envs->seed = seed;
    envs->episodes = calloc((size_t)count, sizeof *envs->episodes);
    envs->worlds = calloc((size_t)count, sizeof *envs->worlds);
    if (envs->episodes == NULL || envs->worlds == NULL) {
        drive_envs_close(envs);
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        begin_episode(envs, i);
        drive_observe(&envs->worlds[i], observations + (size_t)i * DRIVE_OBSERVATIONS);
    }
    return envs;
}

// One decision in every world. `ends` gets the DriveStatus (0: the episode goes on); after an end
// the next episode begins at once, and `observations` are its first.
void drive_envs_step(DriveEnvs *envs, const int64_t *actions, float *observations, float *rewards,
                     int64_t *ends) {
    for (int i = 0; i < envs->count; i++) {
        Drive *drive = &envs->worlds[i];
        rewards[i] = drive_step(drive, (int)actions[i]);
        ends[i] = drive->status;
        if (drive->status != DRIVE_RUNNING) begin_episode(envs, i);
        drive_observe(drive, observations + (size_t)i * DRIVE_OBSERVATIONS);
    }
}
