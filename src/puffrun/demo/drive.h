// drive.h: a small driving world, header only, shared by the library and by visualize.
//
// A closed two-way road with four lanes, driven anticlockwise on the right. The ego car starts in
// one of its two lanes and must touch a goal further down the road without hitting another car,
// leaving the road, driving past the goal or running out of time.
//
// Everything is a function of the scenario number and of the actions: no clock, no global state.
// Units are metres, seconds and radians. `s` is the distance along the centre line, `d` the
// distance to its left.
#ifndef DRIVE_H
#define DRIVE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define DRIVE_PI 3.14159265f
#define DRIVE_POINTS 256        // samples of the centre line, equally far apart
#define DRIVE_LANES 4           // 0 is the outermost; 0 and 1 go with the ego, 2 and 3 against it
#define DRIVE_CARS_PER_LANE 3
#define DRIVE_CARS (DRIVE_LANES * DRIVE_CARS_PER_LANE)
#define DRIVE_LANE_WIDTH 4.0f
#define DRIVE_ROAD_HALF 8.0f
#define DRIVE_CAR_LENGTH 4.6f
#define DRIVE_CAR_WIDTH 2.0f
#define DRIVE_GOAL_RADIUS 2.5f

#define DRIVE_ACTIONS 15        // 5 steering angles x (brake, coast, accelerate)
#define DRIVE_OBSERVATIONS 28
#define DRIVE_TICK_S 0.1f
#define DRIVE_TICKS_PER_STEP 2  // a decision lasts two ticks
#define DRIVE_MAX_STEPS 160     // decisions until the time is over
#define DRIVE_MAX_SPEED 12.0f
#define DRIVE_MAX_STEER 0.45f
#define DRIVE_WHEELBASE 2.8f
#define DRIVE_GRIP 9.0f         // largest lateral acceleration, m/s^2
#define DRIVE_SIGHT 60.0f       // how far the ego sees along the road

typedef enum { DRIVE_RUNNING, DRIVE_GOAL, DRIVE_COLLISION, DRIVE_OFFROAD, DRIVE_MISSED } DriveStatus;

typedef struct { float x, y, heading, curvature; } DrivePoint;
typedef struct { float x, y, heading, speed, s, d, cruise; } DriveCar;

typedef struct {
    DrivePoint road[DRIVE_POINTS];
    float length, spacing;               // of the centre line, and between two of its points
    DriveCar ego, cars[DRIVE_CARS];      // cars[lane * DRIVE_CARS_PER_LANE + k]
    float steer, goal_s, goal_d, goal_distance, to_goal;
    int steps;
    DriveStatus status;
    uint64_t rng;
} Drive;

// --- numbers ---------------------------------------------------------------------------------

// SplitMix64 (Steele, Lea and Flood 2014): good enough here, and one line of state.
static inline uint64_t drive_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Names a scenario: the episode'th of a world, of all the worlds that a seed stands for.
static inline uint64_t drive_scenario(uint64_t seed, uint64_t world, uint64_t episode) {
    return drive_mix(drive_mix(seed) + world) + episode;
}

static inline float drive_uniform(Drive *drive, float low, float high) {
    drive->rng = drive_mix(drive->rng);
    return low + (high - low) * (float)(drive->rng >> 40) / 16777216.0f;
}

static inline float drive_clamp(float x, float low, float high) {
    return x < low ? low : x > high ? high : x;
}

static inline float drive_wrap_angle(float a) {
    while (a > DRIVE_PI) a -= 2 * DRIVE_PI;
    while (a < -DRIVE_PI) a += 2 * DRIVE_PI;
    return a;
}

// The signed way from `from` to `to` on a loop, the shorter one.
static inline float drive_gap(const Drive *drive, float from, float to) {
    float gap = to - from;
    if (gap > drive->length / 2) gap -= drive->length;
    if (gap < -drive->length / 2) gap += drive->length;
    return gap;
}

static inline float drive_wrap_s(const Drive *drive, float s) {
    if (s < 0) s += drive->length;
    if (s >= drive->length) s -= drive->length;
    return s;
}

static inline int drive_lane_direction(int lane) { return lane < 2 ? 1 : -1; }
static inline float drive_lane_d(int lane) { return (lane - 1.5f) * DRIVE_LANE_WIDTH; }

// --- the road --------------------------------------------------------------------------------

static inline const DrivePoint *drive_road_at(const Drive *drive, float s) {
    int i = (int)(drive_wrap_s(drive, s) / drive->spacing);
    return &drive->road[i % DRIVE_POINTS];
}

static inline void drive_measure_road(Drive *drive) {
    for (int i = 0; i < DRIVE_POINTS; i++) {
        const DrivePoint *a = &drive->road[(i + DRIVE_POINTS - 1) % DRIVE_POINTS];
        const DrivePoint *b = &drive->road[(i + 1) % DRIVE_POINTS];
        drive->road[i].heading = atan2f(b->y - a->y, b->x - a->x);
    }
    for (int i = 0; i < DRIVE_POINTS; i++) {
        const DrivePoint *a = &drive->road[(i + DRIVE_POINTS - 1) % DRIVE_POINTS];
        const DrivePoint *b = &drive->road[(i + 1) % DRIVE_POINTS];
        float turn = drive_wrap_angle(b->heading - a->heading);
        drive->road[i].curvature = turn / (2 * drive->spacing);
    }
}

// A wavy ellipse, resampled at equal distances. Returns the tightest curvature.
static inline float drive_draw_road(Drive *drive, const float *wave, const float *phase) {
    enum { N = DRIVE_POINTS };
    float x[N + 1], y[N + 1], at[N + 1];
    for (int i = 0; i <= N; i++) {
        float angle = 2 * DRIVE_PI * (i % N) / N, r = 1;
        for (int k = 0; k < 3; k++) r += wave[k] * cosf((k + 2) * angle + phase[k]);
        x[i] = 84 * r * cosf(angle);
        y[i] = 52 * r * sinf(angle);
        at[i] = i == 0 ? 0 : at[i - 1] + hypotf(x[i] - x[i - 1], y[i] - y[i - 1]);
    }
    drive->length = at[N];
    drive->spacing = at[N] / N;
    for (int i = 0, j = 0; i < N; i++) {
        float s = i * drive->spacing;
        while (j < N - 1 && at[j + 1] <= s) j++;
        float t = (s - at[j]) / (at[j + 1] - at[j]);
        drive->road[i].x = x[j] + t * (x[j + 1] - x[j]);
        drive->road[i].y = y[j] + t * (y[j + 1] - y[j]);
    }
    drive_measure_road(drive);
    float tightest = 0;
    for (int i = 0; i < N; i++) tightest = fmaxf(tightest, fabsf(drive->road[i].curvature));
    return tightest;
}

static inline void drive_make_road(Drive *drive) {
    float wave[3], phase[3];
    for (int k = 0; k < 3; k++) {
        wave[k] = drive_uniform(drive, 0.04f, 0.16f) / (1 + 0.5f * k);
        phase[k] = drive_uniform(drive, 0, 2 * DRIVE_PI);
    }
    // the inner lanes need room: flatten the waves until no bend is tighter than 16 m
    while (drive_draw_road(drive, wave, phase) > 1 / 16.0f)
        for (int k = 0; k < 3; k++) wave[k] *= 0.8f;
}

// Puts a car that knows `s` and `d` on the map.
static inline void drive_place(const Drive *drive, DriveCar *car, int direction) {
    const DrivePoint *p = drive_road_at(drive, car->s);
    float along = car->s - (float)(p - drive->road) * drive->spacing;
    float heading = p->heading + along * p->curvature;
    float middle = p->heading + 0.5f * along * p->curvature;
    car->x = p->x + along * cosf(middle) - car->d * sinf(heading);
    car->y = p->y + along * sinf(middle) + car->d * cosf(heading);
    car->heading = drive_wrap_angle(direction > 0 ? heading : heading + DRIVE_PI);
}

// Finds `s` and `d` of the ego from its place on the map, starting from where it was.
static inline void drive_locate(Drive *drive) {
    DriveCar *ego = &drive->ego;
    int start = (int)(ego->s / drive->spacing), best = 0;
    float nearest = 1e9f;
    for (int offset = -3; offset <= 4; offset++) {
        int i = (start + offset + DRIVE_POINTS) % DRIVE_POINTS;
        float dx = ego->x - drive->road[i].x, dy = ego->y - drive->road[i].y;
        float distance = dx * dx + dy * dy;
        if (distance < nearest) nearest = distance, best = i;
    }
    const DrivePoint *p = &drive->road[best];
    float dx = ego->x - p->x, dy = ego->y - p->y, c = cosf(p->heading), s = sinf(p->heading);
    ego->s = drive_wrap_s(drive, best * drive->spacing + dx * c + dy * s);
    ego->d = -dx * s + dy * c;
}

// --- the cars --------------------------------------------------------------------------------

static inline void drive_make_cars(Drive *drive) {
    int lane = drive_uniform(drive, 0, 2) < 1 ? 0 : 1;
    float start = drive_uniform(drive, 0, drive->length);
    drive->ego = (DriveCar){.s = start, .d = drive_lane_d(lane)};
    drive->ego.speed = drive_uniform(drive, 4, 10);
    drive_place(drive, &drive->ego, 1);
    for (int i = 0; i < DRIVE_CARS; i++) {
        int at = i / DRIVE_CARS_PER_LANE, k = i % DRIVE_CARS_PER_LANE;
        DriveCar *car = &drive->cars[i];
        // one car in each third of the loop, at least 25 m from the ego and 15 m from each other
        float third = (drive->length - 50) / DRIVE_CARS_PER_LANE;
        float offset = 25 + third * k + drive_uniform(drive, 0, third - 15);
        float own_way = drive_uniform(drive, 6, 9), oncoming = drive_uniform(drive, 7, 11);
        *car = (DriveCar){.d = drive_lane_d(at), .cruise = at < 2 ? own_way : oncoming};
        car->s = drive_wrap_s(drive, start + offset);
        car->speed = car->cruise;
        drive_place(drive, car, drive_lane_direction(at));
    }
}

// The free road ahead of a car in its lane; the ego counts for those that drive its way.
static inline float drive_headway(const Drive *drive, int lane, const DriveCar *car) {
    int direction = drive_lane_direction(lane);
    float free = DRIVE_SIGHT;
    for (int k = 0; k < DRIVE_CARS_PER_LANE; k++) {
        const DriveCar *other = &drive->cars[lane * DRIVE_CARS_PER_LANE + k];
        float gap = direction * drive_gap(drive, car->s, other->s);
        if (other != car && gap > 0 && gap < free) free = gap;
    }
    float gap = drive_gap(drive, car->s, drive->ego.s);
    int ego_in_lane = fabsf(drive->ego.d - car->d) < 2.2f;
    if (direction > 0 && ego_in_lane && gap > 0 && gap < free) free = gap;
    return free;
}

static inline void drive_move_cars(Drive *drive) {
    for (int i = 0; i < DRIVE_CARS; i++) {
        int lane = i / DRIVE_CARS_PER_LANE, direction = drive_lane_direction(lane);
        DriveCar *car = &drive->cars[i];
        float wanted = fminf(car->cruise, fmaxf(0, (drive_headway(drive, lane, car) - 8) * 0.8f));
        float change = drive_clamp(wanted - car->speed, -8 * DRIVE_TICK_S, 2 * DRIVE_TICK_S);
        car->speed += change;
        float bend = 1 - car->d * drive_road_at(drive, car->s)->curvature;
        car->s = drive_wrap_s(drive, car->s + direction * car->speed * DRIVE_TICK_S / bend);
        drive_place(drive, car, direction);
    }
}

// A bicycle model whose grip is limited: what is too fast for a bend goes wide.
static inline void drive_move_ego(Drive *drive, int action) {
    static const float STEER[5] = {-1.0f, -0.3f, 0.0f, 0.3f, 1.0f};
    static const float THROTTLE[3] = {-5.0f, 0.0f, 4.0f};
    DriveCar *ego = &drive->ego;
    float target = STEER[action % 5] * DRIVE_MAX_STEER;
    drive->steer += drive_clamp(target - drive->steer, -0.2f, 0.2f);
    float speed = ego->speed + THROTTLE[action / 5] * DRIVE_TICK_S;
    ego->speed = drive_clamp(speed, 0, DRIVE_MAX_SPEED);
    float grip = DRIVE_GRIP / fmaxf(ego->speed * ego->speed, 1);
    float curvature = drive_clamp(tanf(drive->steer) / DRIVE_WHEELBASE, -grip, grip);
    float turn = curvature * ego->speed * DRIVE_TICK_S;
    ego->x += ego->speed * DRIVE_TICK_S * cosf(ego->heading + turn / 2);
    ego->y += ego->speed * DRIVE_TICK_S * sinf(ego->heading + turn / 2);
    ego->heading = drive_wrap_angle(ego->heading + turn);
    drive_locate(drive);
}

// Two cars touch when any two of their three discs do.
static inline int drive_touches(const DriveCar *a, const DriveCar *b) {
    float dx = b->x - a->x, dy = b->y - a->y;
    if (dx * dx + dy * dy > 36) return 0;
    float ca = cosf(a->heading), sa = sinf(a->heading);
    float cb = cosf(b->heading), sb = sinf(b->heading);
    for (int i = -1; i <= 1; i++)
        for (int j = -1; j <= 1; j++) {
            float x = dx + 1.4f * (j * cb - i * ca), y = dy + 1.4f * (j * sb - i * sa);
            if (x * x + y * y < DRIVE_CAR_WIDTH * DRIVE_CAR_WIDTH) return 1;
        }
    return 0;
}

static inline DriveStatus drive_judge(const Drive *drive) {
    const DriveCar *ego = &drive->ego;
    if (fabsf(ego->d) > DRIVE_ROAD_HALF - DRIVE_CAR_WIDTH / 2) return DRIVE_OFFROAD;
    for (int i = 0; i < DRIVE_CARS; i++)
        if (drive_touches(ego, &drive->cars[i])) return DRIVE_COLLISION;
    if (hypotf(drive->to_goal, drive->goal_d - ego->d) < DRIVE_GOAL_RADIUS) return DRIVE_GOAL;
    if (drive->to_goal < -DRIVE_GOAL_RADIUS) return DRIVE_MISSED;
    return drive->steps >= DRIVE_MAX_STEPS ? DRIVE_MISSED : DRIVE_RUNNING;
}

// --- what the policy sees and does -----------------------------------------------------------

static inline void drive_observe_lane(const Drive *drive, int lane, float *out) {
    float ahead = DRIVE_SIGHT, behind = DRIVE_SIGHT, ahead_speed = 0, behind_speed = 0;
    for (int k = 0; k < DRIVE_CARS_PER_LANE; k++) {
        const DriveCar *car = &drive->cars[lane * DRIVE_CARS_PER_LANE + k];
        float gap = drive_gap(drive, drive->ego.s, car->s);
        float speed = drive_lane_direction(lane) * car->speed - drive->ego.speed;
        if (gap >= 0 && gap < ahead) ahead = gap, ahead_speed = speed;
        if (gap < 0 && -gap < behind) behind = -gap, behind_speed = speed;
    }
    out[0] = expf(-ahead / 20);  // fine where it matters: 1 beside the ego, 0 out of sight
    out[1] = ahead_speed / DRIVE_MAX_SPEED;
    out[2] = expf(-behind / 20);
    out[3] = behind_speed / DRIVE_MAX_SPEED;
}

// 12 numbers about the ego, the road and the goal, then 4 a lane; all roughly within -1 and 1.
static inline void drive_observe(const Drive *drive, float *out) {
    static const float LOOK_AHEAD[4] = {2, 12, 25, 45};
    const DriveCar *ego = &drive->ego;
    float road_heading = drive_road_at(drive, ego->s)->heading;
    *out++ = ego->d / DRIVE_LANE_WIDTH;
    *out++ = 2 * sinf(ego->heading - road_heading);
    *out++ = ego->speed / DRIVE_MAX_SPEED;
    *out++ = drive->steer / DRIVE_MAX_STEER;
    for (int i = 0; i < 4; i++)
        *out++ = 16 * drive_road_at(drive, ego->s + LOOK_AHEAD[i])->curvature;
    *out++ = drive->to_goal / 200;
    *out++ = drive_clamp(drive->to_goal / 40, 0, 1);
    *out++ = (drive->goal_d - ego->d) / DRIVE_LANE_WIDTH;
    *out++ = (float)drive->steps / DRIVE_MAX_STEPS;
    for (int lane = 0; lane < DRIVE_LANES; lane++, out += 4) drive_observe_lane(drive, lane, out);
}

static inline void drive_start(Drive *drive, uint64_t scenario) {
    memset(drive, 0, sizeof *drive);
    drive->rng = drive_mix(scenario);
    drive_make_road(drive);
    drive_make_cars(drive);
    drive->goal_distance = drive->to_goal = drive_uniform(drive, 120, 200);
    drive->goal_s = drive_wrap_s(drive, drive->ego.s + drive->goal_distance);
    drive->goal_d = drive_lane_d(drive_uniform(drive, 0, 2) < 1 ? 0 : 1);
}

// A tenth of a second.
static inline void drive_tick(Drive *drive, int action) {
    if (drive->status != DRIVE_RUNNING) return;
    float before = drive->ego.s;
    drive_move_ego(drive, action);
    drive_move_cars(drive);
    drive->to_goal -= drive_gap(drive, before, drive->ego.s);
    drive->status = drive_judge(drive);
}

// How far the ego is from the middle of its lane: 0 there, 1 on a line.
static inline float drive_off_lane(const Drive *drive) {
    float lane = (drive->ego.d + DRIVE_ROAD_HALF) / DRIVE_LANE_WIDTH;
    return fabsf(lane - floorf(lane) - 0.5f) * 2;
}

// One decision. Returns the reward: 3 for the whole way, 2 for the goal, -1 for any other end, and
// small fines for haste at the wheel, for driving between lanes and on the wrong side.
static inline float drive_step(Drive *drive, int action) {
    float before = drive->to_goal, steer = drive->steer;
    drive->steps++;
    for (int i = 0; i < DRIVE_TICKS_PER_STEP; i++) drive_tick(drive, action);
    float reward = 4 * (before - drive->to_goal) / drive->goal_distance - 0.02f;
    reward -= 0.02f * fabsf(drive->steer - steer);
    reward -= 0.03f * drive_off_lane(drive);
    reward -= drive->ego.d > 0 ? 0.03f : 0;
    if (drive->status == DRIVE_GOAL) return reward + 3;
    return drive->status == DRIVE_RUNNING ? reward : reward - 1;
}

#endif
