// Adds up the waves of the generated header.
#include <math.h>

#include "waves.h"

double wave(double x) {
    double sum = 0;
    for (unsigned i = 0; i < sizeof WAVES / sizeof *WAVES; i++) sum += WAVES[i][1] * sin(WAVES[i][0] * x);
    return sum;
}
