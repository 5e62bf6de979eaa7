#include "scan.h"
SCANS(4, float, FloatSum)
