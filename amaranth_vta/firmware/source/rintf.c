/* rintf for cores without floating point, rounding halves to even. */
#include "math.h"

float rintf(float value)
{
    /* Adding 2^23 leaves no bits for a fraction, and additions round halves to even. */
    const float large = 0x1p23f;
    if (!(value < large && value > -large))
        return value;
    return value < 0 ? -(large - value - large) : value + large - large;
}
