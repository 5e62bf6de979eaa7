#include "onesweep.h"
SORT_KERNELS(1, 22)
