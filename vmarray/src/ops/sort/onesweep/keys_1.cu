#include "onesweep.h"
SORT_KEYS(1, 384, 22, 3)
