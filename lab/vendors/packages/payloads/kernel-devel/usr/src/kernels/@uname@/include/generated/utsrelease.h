#define UTS_RELEASE "@uname@"
