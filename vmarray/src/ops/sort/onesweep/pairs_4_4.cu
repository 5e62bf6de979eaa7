#include "onesweep.h"
SORT_PAIRS(4, 4, 512, 16, 2)
