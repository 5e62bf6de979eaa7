#include "look_back.h"
LOOKS_BACK(4)
