#include "scan.h"
SCANS(4, u32)
