// visualize.c: drives the exported policy in the C world and draws it as an animated GIF.
//
//   cc -O2 visualize.c -o visualize -lm
//   visualize WEIGHTS PICTURE.gif [SEED [EPISODES]]
//   visualize WEIGHTS --trace [SEED [EPISODES]]     numbers instead: observations, then logits
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "canvas.h"
#include "drive.h"
#include "gif.h"
#include "policy.h"

#define HUD_HEIGHT 36
#define MARGIN 14               // metres of landscape around the road
#define FRAME_DELAY 5           // hundredths of a second for a tick of 0.1 s: twice as fast as life
#define LAST_FRAME_DELAY 130

// Where the world's (0, 0) is on the canvas, and pixels per metre; y grows downwards there.
typedef struct { float x, y, scale; } View;

typedef struct {
    Drive drive;
    View view;
    Canvas ground, canvas; // what stays, and what is shown
} Scene;

static const char *const ENDINGS[] = {"", "GOAL", "COLLISION", "OFF THE ROAD", "MISSED"};

// --- the ground, drawn once an episode --------------------------------------------------------

static View fit_view(const Drive *drive) {
    float low_x = 1e9f, high_x = -1e9f, low_y = 1e9f, high_y = -1e9f;
    for (int i = 0; i < DRIVE_POINTS; i++) {
        low_x = fminf(low_x, drive->road[i].x), high_x = fmaxf(high_x, drive->road[i].x);
        low_y = fminf(low_y, drive->road[i].y), high_y = fmaxf(high_y, drive->road[i].y);
    }
    float room_x = CANVAS_WIDTH / (high_x - low_x + 2 * MARGIN);
    float room_y = (CANVAS_HEIGHT - HUD_HEIGHT) / (high_y - low_y + 2 * MARGIN);
    float scale = fminf(room_x, room_y);
    return (View){CANVAS_WIDTH / 2.0f - scale * (low_x + high_x) / 2,
                  (CANVAS_HEIGHT - HUD_HEIGHT) / 2.0f + scale * (low_y + high_y) / 2, scale};
}

static float view_x(const View *view, float x) { return view->x + x * view->scale; }
static float view_y(const View *view, float y) { return view->y - y * view->scale; }

// The place of a point along the road and to its left.
static void find_on_road(const Drive *drive, float x, float y, float *s, float *d) {
    int best = 0;
    float nearest = 1e9f;
    for (int i = 0; i < DRIVE_POINTS; i++) {
        float dx = x - drive->road[i].x, dy = y - drive->road[i].y;
        if (dx * dx + dy * dy < nearest) nearest = dx * dx + dy * dy, best = i;
    }
    const DrivePoint *p = &drive->road[best];
    float dx = x - p->x, dy = y - p->y, c = cosf(p->heading), n = sinf(p->heading);
    *s = best * drive->spacing + dx * c + dy * n;
    *d = fabsf(nearest) > 400 ? copysignf(sqrtf(nearest), dy * c - dx * n) : dy * c - dx * n;
}

static Color paint(Color color, int ink, float distance, float scale) {
    return canvas_mix(color, INK[ink], canvas_clamp(0.5f - distance * scale));
}

static Color ground_color(const Drive *drive, float x, float y, float scale) {
    float s, d;
    find_on_road(drive, x, y, &s, &d);
    float side = fabsf(d);
    float wave = sinf(0.06f * x + 1.3f * sinf(0.035f * y)) + sinf(0.07f * y + sinf(0.04f * x));
    Color color = paint(INK[GRASS], MEADOW, 8 * (0.2f - wave), scale);
    color = paint(color, SAND, side - DRIVE_ROAD_HALF - 1.1f, scale);
    color = paint(color, ASPHALT, side - DRIVE_ROAD_HALF, scale);
    color = paint(color, WHITE, fabsf(side - DRIVE_ROAD_HALF + 0.6f) - 0.14f, scale);
    color = paint(color, YELLOW, fabsf(side - 0.34f) - 0.15f, scale);
    float period = drive->length / roundf(drive->length / 8), phase = fmodf(s + period, period);
    float dash = fmaxf(fabsf(side - DRIVE_LANE_WIDTH) - 0.15f, fabsf(phase - period / 2) - 1.5f);
    return paint(color, WHITE, dash, scale);
}

static void draw_tree(Canvas *canvas, float x, float y, float radius) {
    canvas_disc(canvas, x + 0.25f * radius, y + 0.3f * radius, radius, NIGHT, 0.25f);
    canvas_disc(canvas, x, y, radius, LEAF, 1);
    canvas_disc(canvas, x - 0.25f * radius, y - 0.25f * radius, 0.55f * radius, GRASS, 0.5f);
}

static void draw_trees(Scene *scene, uint64_t seed) {
    Drive dice = {.rng = seed};
    for (int i = 0; i < 90; i++) {
        float px = drive_uniform(&dice, 0, CANVAS_WIDTH), s, d;
        float py = drive_uniform(&dice, 0, CANVAS_HEIGHT - HUD_HEIGHT);
        float radius = drive_uniform(&dice, 1.6f, 3.2f);
        float x = (px - scene->view.x) / scene->view.scale;
        float y = (scene->view.y - py) / scene->view.scale;
        find_on_road(&scene->drive, x, y, &s, &d);
        if (fabsf(d) < DRIVE_ROAD_HALF + 3 + radius) continue;
        draw_tree(&scene->ground, px, py, radius * scene->view.scale);
    }
}

// A chequered patch across the goal's lane.
static void draw_finish(Scene *scene) {
    float half = DRIVE_LANE_WIDTH / 8;
    for (int row = 0; row < 3; row++)
        for (int column = 0; column < 4; column++) {
            DriveCar tile = {.s = drive_wrap_s(&scene->drive, scene->drive.goal_s + (row - 1) * 2 * half),
                             .d = scene->drive.goal_d + (2 * column - 3) * half};
            drive_place(&scene->drive, &tile, 1);
            Box box = {view_x(&scene->view, tile.x), view_y(&scene->view, tile.y), -tile.heading,
                       half * scene->view.scale, half * scene->view.scale, 0};
            canvas_box(&scene->ground, box, 0, (row + column) % 2 ? NIGHT : WHITE, 1);
        }
}

static void draw_ground(Scene *scene, uint64_t seed) {
    scene->view = fit_view(&scene->drive);
    for (int py = 0; py < CANVAS_HEIGHT; py++)
        for (int px = 0; px < CANVAS_WIDTH; px++) {
            float x = (px - scene->view.x) / scene->view.scale;
            float y = (scene->view.y - py) / scene->view.scale;
            scene->ground.pixels[py * CANVAS_WIDTH + px] =
                ground_color(&scene->drive, x, y, scene->view.scale);
        }
    draw_trees(scene, seed);
    draw_finish(scene);
}

// --- what moves ------------------------------------------------------------------------------

static void draw_part(Scene *scene, const DriveCar *car, float along, float half_length,
                      float half_width, int ink, float alpha) {
    float scale = scene->view.scale;
    float x = view_x(&scene->view, car->x + along * cosf(car->heading));
    float y = view_y(&scene->view, car->y + along * sinf(car->heading));
    Box box = {x, y, -car->heading, half_length * scale, half_width * scale, 0.35f * scale};
    canvas_box(&scene->canvas, box, 0, ink, alpha);
}

static void draw_car(Scene *scene, const DriveCar *car, int ink) {
    DriveCar shadow = *car;
    shadow.x += 0.4f, shadow.y -= 0.5f;
    draw_part(scene, &shadow, 0, 2.3f, 1.0f, NIGHT, 0.45f);
    draw_part(scene, car, 0, 2.3f, 1.0f, ink, 1);
    draw_part(scene, car, 0.55f, 0.42f, 0.8f, NIGHT, 0.8f);  // windscreen
    draw_part(scene, car, -1.5f, 0.32f, 0.75f, NIGHT, 0.7f); // rear window
}

static void draw_goal(Scene *scene, int tick) {
    DriveCar goal = {.s = scene->drive.goal_s, .d = scene->drive.goal_d};
    drive_place(&scene->drive, &goal, 1);
    float x = view_x(&scene->view, goal.x), y = view_y(&scene->view, goal.y);
    float wave = (tick % 10) / 10.0f, scale = scene->view.scale;
    canvas_ring(&scene->canvas, x, y, DRIVE_GOAL_RADIUS * scale, 2, YELLOW, 1);
    canvas_ring(&scene->canvas, x, y, (DRIVE_GOAL_RADIUS + 4 * wave) * scale, 2, YELLOW, 1 - wave);
}

// The ego's last tick, drawn on the ground, where it stays.
static void draw_trail(Scene *scene, float from_x, float from_y) {
    float ax = view_x(&scene->view, from_x), ay = view_y(&scene->view, from_y);
    float bx = view_x(&scene->view, scene->drive.ego.x);
    float by = view_y(&scene->view, scene->drive.ego.y);
    float half = hypotf(bx - ax, by - ay) / 2;
    Box box = {(ax + bx) / 2, (ay + by) / 2, atan2f(by - ay, bx - ax), half + 1.4f, 1.4f, 1.4f};
    canvas_box(&scene->ground, box, 0, CYAN, 1);
}

static void draw_hud(Canvas *canvas, const Drive *drive, int episode, int episodes, int goals) {
    int top = CANVAS_HEIGHT - HUD_HEIGHT, line = top + 11;
    char text[64];
    for (int y = top; y < CANVAS_HEIGHT; y++)
        for (int x = 0; x < CANVAS_WIDTH; x++) canvas->pixels[y * CANVAS_WIDTH + x] = INK[NIGHT];
    snprintf(text, sizeof text, "ROAD %d/%d", episode + 1, episodes);
    canvas_text(canvas, 14, line, 2, WHITE, text);
    snprintf(text, sizeof text, "STEP %03d", drive->steps);
    canvas_text(canvas, 150, line, 2, SILVER, text);
    snprintf(text, sizeof text, "%2.0f KM/H", drive->ego.speed * 3.6f);
    canvas_text(canvas, 276, line, 2, SILVER, text);
    snprintf(text, sizeof text, "GOALS %d", goals);
    canvas_text(canvas, CANVAS_WIDTH - 14 - canvas_text_width(text, 2), line, 2, YELLOW, text);
    float way = canvas_clamp(1 - drive->to_goal / drive->goal_distance), half = 82;
    Box bar = {482, top + HUD_HEIGHT / 2.0f, 0, half, 4, 4}, done = bar;
    done.half_length = fmaxf(4, half * way), done.x = bar.x - half + done.half_length;
    canvas_box(canvas, bar, 0, ASPHALT, 1);
    canvas_box(canvas, done, 0, CYAN, 1);
}

static void draw_banner(Canvas *canvas, const char *text, int ink) {
    int width = canvas_text_width(text, 5);
    float x = CANVAS_WIDTH / 2.0f, y = (CANVAS_HEIGHT - HUD_HEIGHT) / 2.0f;
    canvas_box(canvas, (Box){x, y, 0, width / 2.0f + 26, 36, 12}, 0, NIGHT, 0.85f);
    canvas_text(canvas, (int)x - width / 2, (int)y - 17, 5, ink, text);
}

static void draw_scene(Scene *scene, int tick) {
    static const int CAR_INKS[] = {BLUE, SILVER, WHITE};
    memcpy(&scene->canvas, &scene->ground, sizeof scene->canvas);
    draw_goal(scene, tick);
    for (int i = 0; i < DRIVE_CARS; i++)
        draw_car(scene, &scene->drive.cars[i], CAR_INKS[(i + i / DRIVE_CARS_PER_LANE) % 3]);
    draw_car(scene, &scene->drive.ego, RED);
}

// --- the film --------------------------------------------------------------------------------

typedef struct {
    Gif gif;
    Color palette[256];
    uint16_t known[1 << 18];
    uint8_t indices[CANVAS_PIXELS];
} Film;

static void shoot(Film *film, const Canvas *canvas, int delay) {
    canvas_indices(canvas, film->palette, film->known, film->indices);
    gif_frame(&film->gif, film->indices, delay);
}

static int choose(const Policy *policy, const Drive *drive, float *observations, float *logits) {
    drive_observe(drive, observations);
    policy_logits(policy, observations, logits);
    return policy_choose(logits, DRIVE_ACTIONS);
}

// One road, driven to its end. Returns how many goals have been reached so far.
static int film_episode(Film *film, Scene *scene, const Policy *policy, int episode, int episodes,
                        int goals) {
    float observations[DRIVE_OBSERVATIONS], logits[DRIVE_ACTIONS];
    Drive *drive = &scene->drive;
    for (int tick = 0, action = 0; drive->status == DRIVE_RUNNING; tick++) {
        draw_scene(scene, tick);
        draw_hud(&scene->canvas, drive, episode, episodes, goals);
        shoot(film, &scene->canvas, FRAME_DELAY);
        if (tick % DRIVE_TICKS_PER_STEP == 0) {
            action = choose(policy, drive, observations, logits);
            drive->steps++;
        }
        float x = drive->ego.x, y = drive->ego.y;
        drive_tick(drive, action);
        draw_trail(scene, x, y);
    }
    int reached = drive->status == DRIVE_GOAL;
    draw_scene(scene, 0);
    draw_hud(&scene->canvas, drive, episode, episodes, goals + reached);
    draw_banner(&scene->canvas, ENDINGS[drive->status], reached ? YELLOW : RED);
    shoot(film, &scene->canvas, LAST_FRAME_DELAY);
    return goals + reached;
}

static int make_film(FILE *file, const Policy *policy, uint64_t seed, int episodes) {
    Film *film = calloc(1, sizeof *film);
    Scene *scene = calloc(1, sizeof *scene);
    int whole = 0, goals = 0;
    if (film != NULL && scene != NULL) {
        canvas_palette(film->palette);
        const uint8_t *palette = (const uint8_t *)film->palette;
        whole = gif_open(&film->gif, file, CANVAS_WIDTH, CANVAS_HEIGHT, palette);
        for (int i = 0; whole && i < episodes; i++) {
            drive_start(&scene->drive, drive_scenario(seed, (uint64_t)i, 0));
            draw_ground(scene, seed + (uint64_t)i);
            goals = film_episode(film, scene, policy, i, episodes, goals);
        }
        whole = whole && gif_finish(&film->gif);
    }
    free(film);
    free(scene);
    return whole;
}

static void print_numbers(const float *numbers, int count) {
    for (int i = 0; i < count; i++) printf("%.9g ", numbers[i]);
}

// A line for each decision: the observations, the logits.
static void trace(const Policy *policy, uint64_t seed, int episodes) {
    float observations[DRIVE_OBSERVATIONS], logits[DRIVE_ACTIONS];
    static Drive drive;
    for (int i = 0; i < episodes; i++) {
        drive_start(&drive, drive_scenario(seed, (uint64_t)i, 0));
        while (drive.status == DRIVE_RUNNING) {
            int action = choose(policy, &drive, observations, logits);
            print_numbers(observations, DRIVE_OBSERVATIONS);
            print_numbers(logits, DRIVE_ACTIONS);
            putchar('\n');
            drive_step(&drive, action);
        }
    }
}

// The picture appears under its name only when it is whole.
static int write_picture(const char *path, const Policy *policy, uint64_t seed, int episodes) {
    char temporary_path[4096];
    snprintf(temporary_path, sizeof temporary_path, "%s.tmp", path);
    FILE *file = fopen(temporary_path, "wb");
    if (file == NULL) {
        perror(temporary_path);
        return 1;
    }
    int whole = make_film(file, policy, seed, episodes);
    whole = fclose(file) == 0 && whole;
    if (whole && rename(temporary_path, path) == 0) return 0;
    perror(path);
    remove(temporary_path);
    return 1;
}

int main(int argc, char **argv) {
    static Policy policy;
    if (argc < 3 || argc > 5) {
        fprintf(stderr, "usage: visualize WEIGHTS PICTURE.gif|--trace [SEED [EPISODES]]\n");
        return 2;
    }
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    int episodes = argc > 4 ? atoi(argv[4]) : 3, status = 0;
    if (!policy_load(argv[1], &policy, DRIVE_OBSERVATIONS, DRIVE_ACTIONS)) {
        fprintf(stderr, "visualize: %s is not a policy for this world\n", argv[1]);
        status = 1;
    } else if (strcmp(argv[2], "--trace") == 0) {
        trace(&policy, seed, episodes);
    } else {
        status = write_picture(argv[2], &policy, seed, episodes);
    }
    policy_free(&policy);
    return status;
}
