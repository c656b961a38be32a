/* Sleeps for good. */
#include "watchful.h"

int main(void)
{
    ready();
    pause();
}
