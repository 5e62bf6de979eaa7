#include "onesweep.h"
SORT_PAIRS(2, 4, 512, 16, 2)
