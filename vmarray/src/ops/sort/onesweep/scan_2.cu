#include "scan.h"
SCANS(2, u32)
