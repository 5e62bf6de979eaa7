#include "onesweep.h"
SORT_PAIRS(1, 4, 512, 16, 2)
