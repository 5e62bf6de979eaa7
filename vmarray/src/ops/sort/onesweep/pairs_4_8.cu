#include "onesweep.h"
SORT_PAIRS(4, 8, 384, 14, 2)
