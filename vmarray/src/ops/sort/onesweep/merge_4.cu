#include "merge.h"
MERGES(4)
