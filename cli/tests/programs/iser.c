// Writes and reads a disk over iSCSI, every byte compared. Exits with 1 after a wrong byte or a failed request.
//
//   iser INITIATOR URL PICTURE: writes the file PICTURE to the start of the disk, and reads it back.

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, PIECE = 64 * BLOCK };

static struct iscsi_context *iscsi;

static void fail(const char *what) {
    fprintf(stderr, "iser: %s: %s\n", what, iscsi == NULL ? "" : iscsi_get_error(iscsi));
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fail("INITIATOR URL PICTURE");
    }
    iscsi = iscsi_create_context(argv[1]);
    struct iscsi_url *url = iscsi == NULL ? NULL : iscsi_parse_full_url(iscsi, argv[2]);
    FILE *picture = fopen(argv[3], "rb");
    if (url == NULL || picture == NULL) {
        fail("opening the disk or the file");
    }
    iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
    iscsi_set_header_digest(iscsi, ISCSI_HEADER_DIGEST_NONE);
    if (iscsi_full_connect_sync(iscsi, url->portal, url->lun) != 0) {
        fail("connecting");
    }
    static unsigned char piece[PIECE];
    uint32_t pieces = 0;
    while (fread(piece, 1, PIECE, picture) == PIECE) {
        struct scsi_task *task = iscsi_write10_sync(iscsi, url->lun, pieces++ * (PIECE / BLOCK), piece, PIECE, BLOCK, 0, 0, 0, 0, 0);
        if (task == NULL || task->status != SCSI_STATUS_GOOD) {
            fail("writing");
        }
        scsi_free_scsi_task(task);
    }
    rewind(picture);
    for (uint32_t i = 0; i < pieces; i++) {
        struct scsi_task *task = iscsi_read10_sync(iscsi, url->lun, i * (PIECE / BLOCK), PIECE, BLOCK, 0, 0, 0, 0, 0);
        if (task == NULL || task->status != SCSI_STATUS_GOOD || task->datain.size != PIECE) {
            fail("reading");
        }
        if (fread(piece, 1, PIECE, picture) != PIECE || memcmp(piece, task->datain.data, PIECE) != 0) {
            fail("a byte read is not the one written");
        }
        scsi_free_scsi_task(task);
    }
    if (pieces == 0) {
        fail("the file is too short");
    }
    iscsi_logout_sync(iscsi);
    iscsi_destroy_url(url);
    iscsi_destroy_context(iscsi);
    printf("%u bytes written and read back are equal\n", pieces * PIECE);
    return 0;
}
