#include "onesweep.h"
SORT_KEYS(4, 384, 22, 3)
