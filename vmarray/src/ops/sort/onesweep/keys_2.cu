#include "onesweep.h"
SORT_KEYS(2, 384, 22, 3)
