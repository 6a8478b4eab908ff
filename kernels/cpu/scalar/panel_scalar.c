#include "kernels/common/panel.h"
#include <math.h>
#include <string.h>
static float bf(uint16_t h){uint32_t b=(uint32_t)h<<16;float f;memcpy(&f,&b,4);return f;}
static float e4m3(uint8_t x){int e=x>>3&15,m=x&7;float v=e?ldexpf((float)(8+m),e-10):ldexpf((float)m,-9);return x&128?-v:v;}
static float e5m2(uint8_t x){int e=x>>2&31,m=x&3;float v=e?ldexpf((float)(4+m),e-17):ldexpf((float)m,-16);return x&128?-v:v;}
static const float mag[8]={0,.5f,1,1.5f,2,3,4,6};
static float val(int code,const char*block,int64_t k,int c){
 const int64_t pair=k/2,f8=pair/2*64+c/4*16+pair%2*8+c%4*2+k%2;uint16_t w;float f;
 switch(code){
 case QN_PANEL_BF16: memcpy(&w,block+pair*64+c*4+k%2*2,2);return bf(w);
 case QN_PANEL_E4M3: return e4m3((uint8_t)block[f8])/256.0f;
 case QN_PANEL_E5M2: return e5m2((uint8_t)block[f8])/65536.0f;
 case QN_PANEL_F32: memcpy(&f,block+k*64+c*4,4);return f;
 default: {memcpy(&w,block+k/8*64+c*4+k%2*2,2);unsigned q=(unsigned)w>>(k%8/2*4)&15u;float v=mag[q&7]; if(q&8)v=-v;
  if(code==QN_PANEL_NVFP4) return v*e4m3((uint8_t)block[512+c/4*16+k/16*4+c%4])/256.0f;
  return v*ldexpf(1.0f,(uint8_t)block[512+k/32*16+c]-127);}
 }}
static void run(const qn_panel_call*q,int code,int64_t bytes){
 for(int64_t p=0;p<q->panels;p++)for(int64_t r=0;r<q->rows;r++)for(int c=0;c<16;c++){
  const float*a=(const float*)(const void*)(q->a+r*q->a_stride);float sum=0,tmp=0;
  for(int64_t k=0;k<q->blocks*64;k++){
   const float v=val(code,q->w+p*q->panel_bytes+k/64*bytes,k%64,c);
   if(q->sa){tmp=fmaf(v,a[k],tmp); if(k%128==127||k==q->blocks*64-1){sum=fmaf(tmp,q->sa[r*q->sa_stride+k/128]*q->sb[p*q->sb_stride+k/128],sum);tmp=0;}}
   else sum=fmaf(v,a[k],sum);}
  ((float*)q->sums)[r*q->sums_stride+p*16+c]=sum;}}
static void run_i8(const qn_panel_call*q){static const int8_t o[4]={0,2,1,3};
 for(int64_t p=0;p<q->panels;p++)for(int64_t r=0;r<q->rows;r++)for(int c=0;c<16;c++){
  const int16_t*a=(const int16_t*)(const void*)(q->a+r*q->a_stride);uint32_t s=0;
  for(int64_t k=0;k<q->blocks*64;k++){const int8_t*w=(const int8_t*)q->w+p*q->panel_bytes+k/4*64+c*4;s+=(uint32_t)(w[k%4]*a[k/4*4+o[k%4]]);}
  ((uint32_t*)q->sums)[r*q->sums_stride+p*16+c]=s;}}
#define F(n,c,b) static void n(const qn_panel_call*q){run(q,c,b);}
F(f0,QN_PANEL_BF16,2048)F(f1,QN_PANEL_E4M3,1024)F(f2,QN_PANEL_E5M2,1024)F(f3,QN_PANEL_NVFP4,576)F(f4,QN_PANEL_MXFP4,544)F(f5,QN_PANEL_F32,4096)
const qn_panel_set qn_panel__scalar={.rows_f=QN_PANEL_ROWS_F32,.rows_i8=QN_PANEL_ROWS_I16,.row_multiple=1,.mr=1,.nr=16,.rows_block=8,.panels_block=4,.scratch_bytes=64,
.mm={f0,f1,f2,f3,f4,f5,run_i8}};
