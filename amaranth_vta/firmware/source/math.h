/* What the runtime needs of <math.h>, which a freestanding compiler lacks. */
#ifndef MATH_H
#define MATH_H

float rintf(float value);

#endif
