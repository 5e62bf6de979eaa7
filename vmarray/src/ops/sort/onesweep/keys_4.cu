#include "onesweep.h"
SORT_KERNELS(4, 22)
