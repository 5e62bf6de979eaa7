#include "onesweep.h"
SORT_PAIRS(1, 8, 384, 14, 2)
