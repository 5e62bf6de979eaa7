#include "onesweep.h"
SORT_PAIRS(2, 8, 384, 14, 2)
