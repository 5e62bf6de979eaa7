#include "merge.h"
MERGES(8)
