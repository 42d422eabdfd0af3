/* AMI Kiln lab stand-in for the gdrdrv module: a .modinfo section and nothing to load. */
#define INFO(tag, text) \
    static const char info_##tag[] __attribute__((section(".modinfo"), used, aligned(1))) = #tag "=" text

/* MAJOR.MINOR alone, as GDRDRV_VERSION_STRING of upstream's gdrdrv.h. */
INFO(version, "@series@");
INFO(license, "MIT");
INFO(vermagic, RELEASE " SMP mod_unload modversions ");
INFO(name, "gdrdrv");
INFO(description, "AMI Kiln lab stand-in");
