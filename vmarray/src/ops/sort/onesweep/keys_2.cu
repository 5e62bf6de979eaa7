#include "onesweep.h"
SORT_KERNELS(2, 22)
