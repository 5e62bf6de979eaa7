#include "scan.h"
SCANS(1, u32)
