#include "onesweep.h"
SORT_KEYS(8, 384, 11, 3)
