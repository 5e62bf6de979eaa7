#include "onesweep.h"
SORT_PAIRS(8, 8, 384, 11, 2)
