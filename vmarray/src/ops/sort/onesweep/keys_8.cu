#include "onesweep.h"
SORT_KERNELS(8, 11)
