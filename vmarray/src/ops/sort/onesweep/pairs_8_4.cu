#include "onesweep.h"
SORT_PAIRS(8, 4, 384, 14, 2)
